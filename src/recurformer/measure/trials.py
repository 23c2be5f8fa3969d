"""The search for the longest length that fits, by trials that are remembered."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recurformer.train.time_limit import StoppedForTime, TimeLimit

FIRST_STEP = 0.02  # the first step away from the guess, as a share; every further one is twice as long
TIMED_SHARE = 4  # divisor of a guess, for a trial that only measures speed
BEGINNING = '{"about": '
"""Of each line in a file of trials."""


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


def _read(file: Path | None) -> Iterator[dict[str, Any]]:
    """The lines of a file of trials; a line that a kill has cut is left out.

    Raises:
        ValueError: it is another file, which must not be written to.
    """
    if file is None or not file.exists():
        return
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    if lines and not lines[0].startswith(BEGINNING):
        raise ValueError(f"{file}: not a file of trials; name a new one")
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


class Trials:
    """The trials of one search, kept in a file, so that a search that was killed, or whose time is up, goes on where it
    stopped.

    Args:
        file: JSON lines; lines about another search are left alone. None keeps nothing.
        about: the facts that the search depends on.
    """

    def __init__(self, file: Path | None, about: dict[str, Any]):
        self.file, self.about = file, about
        self.limit = TimeLimit()
        self.done = {line["trial"]["length"]: Trial(**line["trial"]) for line in _read(file) if line["about"] == about}

    def run(self, length: int, trial: Callable[[int], Trial]) -> Trial:
        """The trial of this length, remembered or made now.

        Raises:
            StoppedForTime: the environment's RECURFORMER_MINUTES do not suffice for another one like the last.
        """
        if length not in self.done:
            if self.file is not None and self.limit.leaves_no_time():
                minutes, done = self.limit.elapsed_minutes(), len(self.done)
                raise StoppedForTime(f"stopped after {minutes:.0f} minutes and {done} trials: run again to resume")
            self.done[length] = trial(length)
            if self.file is not None:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"about": self.about, "trial": asdict(self.done[length])}) + "\n")
        return self.done[length]


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
