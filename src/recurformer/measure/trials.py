"""The search for the longest length that fits, by trials."""

import math
from collections.abc import Callable
from dataclasses import dataclass

FIRST_STEP = 0.02  # the first step away from the guess, as a share; every further one is twice as long
TIMED_SHARE = 4  # divisor of a guess, for a trial that only measures speed


@dataclass(frozen=True)
class Trial:
    """One attempt: its tokens, whether they fitted, its seconds, and in bytes its cache and the peak of all that was
    allocated; None where they did not fit, and the peak also where the device does not tell.
    """

    length: int
    fits: bool
    seconds: float
    cache_bytes: int | None = None
    peak_bytes: int | None = None


def search(fits: Callable[[int], bool], guess: int, maximum: int, tolerance: float) -> int:
    """The longest length known to fit, such that one longer by the share `tolerance`, at most, does not.

    Steps from the guess, longer and longer ones, until one length fits and another does not; then bisection.

    Args:
        fits: must not become true again once it is false.
        guess: where to begin.
        maximum: nothing longer is tried; when it fits it is the result.
        tolerance: share of the result.

    Returns:
        0 when not even one token fits.
    """
    low, high, step = 0, maximum + 1, FIRST_STEP
    length = max(1, min(guess, maximum))
    while True:
        if fits(length):
            low = length
        else:
            high = length
        if low == maximum or (high <= maximum and high - low <= max(1, tolerance * low)):
            return low
        if low and high <= maximum:
            length = (low + high) // 2
            continue
        length = min(math.ceil(low * (1 + step)), maximum) if low else max(1, int(high / (1 + step)))
        step *= 2


def longest_within(minutes: float, trial: Callable[[int], Trial], guess: int, maximum: int) -> int:
    """A length, at most `maximum`, whose trial should take no more than `minutes`.

    Judged by one trial of a fraction of the guess, as though the time grew with the square of the length: as attention
    does, and faster than all else, so that trials are rather shorter. The fraction itself is tried in any case; where
    not even that fits, time limits nothing.

    Args:
        minutes: that one trial may take.
        trial: runs one.
        guess: of the longest length that fits.
        maximum: of the result.
    """
    timed = trial(max(1, min(guess, maximum) // TIMED_SHARE))
    if not timed.fits:
        return maximum
    return min(maximum, max(timed.length, int(timed.length * math.sqrt(60 * minutes / max(timed.seconds, 0.01)))))
