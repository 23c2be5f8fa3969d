"""Two independent branches of a layer, which a CUDA graph may run at the same time.

A step of a small batch is expected to be bound by latency, so that two branches can share the GPU. Outside a graph, and
for large inputs, one follows the other. None of this has been measured yet.
"""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

First = TypeVar("First")
Second = TypeVar("Second")
ROWS = 64  # with more rows one branch is expected to fill a GPU


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
    """Return the results of both; neither may read tensors that the other writes.

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
