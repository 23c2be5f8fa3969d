"""Learning-rate schedules: a function of (step, steps, warmup_share) to the share of the peak rate that step 0, 1, …
uses.

A schedule is one function and one line of `SCHEDULES`.
"""

import math
from collections.abc import Callable

Schedule = Callable[[int, int, float], float]


def _rise(step: int, warmup: int) -> float:
    """Linear rise over the warm-up, never zero: the first step already learns."""
    return (step + 1) / warmup


def cosine(step: int, steps: int, warmup_share: float) -> float:
    """A linear rise, then half a cosine down to zero."""
    warmup = round(steps * warmup_share)
    if step < warmup:
        return _rise(step, warmup)
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def one_cycle(step: int, steps: int, warmup_share: float) -> float:
    """Half a cosine up from 1/25 of the peak, half a cosine down to 1/250,000 of it, as in torch's OneCycleLR."""
    initial, final = 1 / 25, 1 / 250_000
    warmup = round(steps * warmup_share)
    if step < warmup:
        return initial + (1 - initial) * 0.5 * (1 - math.cos(math.pi * step / warmup))
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def constant(step: int, steps: int, warmup_share: float) -> float:
    """A linear rise, then the peak rate until the end."""
    warmup = round(steps * warmup_share)
    return _rise(step, warmup) if step < warmup else 1.0


SCHEDULES: dict[str, Schedule] = {"one_cycle": one_cycle, "cosine": cosine, "constant": constant}
