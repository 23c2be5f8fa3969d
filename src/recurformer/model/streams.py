"""Two independent branches of a layer, which a CUDA graph may run at the same time.

Small batches leave most of a GPU idle, so a branch costs its launches' latency and two branches can share it. Outside a
graph the launches themselves are what takes the time, and large inputs fill the GPU: there, one follows the other.
"""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

First = TypeVar("First")
Second = TypeVar("Second")
ROWS = 64  # inputs of more rows fill a GPU


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def forks(device: torch.device, rows: int) -> bool:
    """Return whether branches over so many rows are to run on two streams."""
    if device.type != "cuda" or rows > ROWS or torch.compiler.is_compiling():
        return False
    return torch.cuda.is_current_stream_capturing()


def side_by_side(
    first: Callable[[], First], second: Callable[[], Second], device: torch.device, rows: int
) -> tuple[First, Second]:
    """Return what both give; neither may read what the other writes.

    Args:
        first: stays on the current stream.
        second: may be put on a stream of its own.
        device: where both compute.
        rows: tokens that they compute for.
    """
    if not forks(device, rows):
        return first(), second()
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        there = second()
    here = first()
    main.wait_stream(side)
    return here, there
