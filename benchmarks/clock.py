"""Timing: all calls take turns, round by round, so that a slow phase of the machine slows all of them."""

import math
import time
from collections.abc import Mapping

import torch

from benchmarks.case import Call, nothing

SAMPLE_SECONDS = 0.02
"""Shorter calls are repeated within a sample until it lasts about this long."""
LEAST_ROUNDS = 3


def synchronize(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed(call: Call, device: str, repeats: int = 1) -> float:
    """Seconds of so many runs of a call that is ready."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call.run()
    synchronize(device)
    return time.perf_counter() - start


def _sample(call: Call, repeats: int, device: str) -> float:
    """Seconds for one unit of a call."""
    call.before()
    elapsed = timed(call, device, repeats)
    call.after()
    return elapsed / repeats / call.units


def _warm_up(call: Call, device: str) -> int:
    """Run a call until it is warm; return how often it is repeated within a sample."""
    first = _sample(call, 1, device)
    if call.before is not nothing or first * call.units > SAMPLE_SECONDS:
        return 1
    return max(1, math.ceil(SAMPLE_SECONDS / max(_sample(call, 1, device), 1e-7)))


def take_turns(calls: Mapping[str, Call], rounds: int, seconds: float, device: str) -> dict[str, list[float]]:
    """Time every call once a round; each round starts with another one.

    Args:
        calls: by name.
        rounds: how many at most.
        seconds: after which no further round starts, once there are three.
        device: "cpu" or "cuda".

    Returns:
        For each name the seconds of one unit, round by round.
    """
    repeats = {name: _warm_up(call, device) for name, call in calls.items()}
    names, taken = list(calls), {name: list[float]() for name in calls}
    start = time.perf_counter()
    for done in range(rounds):
        if done >= LEAST_ROUNDS and time.perf_counter() - start > seconds:
            break
        shift = done % len(names)
        for name in names[shift:] + names[:shift]:
            taken[name].append(_sample(calls[name], repeats[name], device))
    return taken
