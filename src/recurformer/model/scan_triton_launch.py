"""How the Triton scan's passes are divided among programs, and how tensors are handed to its kernels.

Steps are unrolled by two, counted in code made for sm_90 by Triton 3.9 (N = 16, float32): the outputs then take 11.6
instructions per state and step and 72 registers (by four 11.1 and 168), the gradients 38 and all 255 with no spill (by
four 128 bytes of stack). The numbers of programs are about the warps that a large GPU holds at these registers.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .scan_triton_carry import carry
from .scan_triton_lanes import LANES, division

CHUNK = 32  # the forward pass saves the states every so many steps
STEPS = 2  # unrolled
AHEAD = 8  # segments that the carry loads at once
FORWARD_PROGRAMS, BACKWARD_PROGRAMS = 2048, 1024  # warps; by the count above, not by measurement
WARP: dict[str, Any] = {"num_warps": 1, "enable_fp_fusion": True}

Rows = tuple[Tensor, int, int]


class Division(NamedTuple):
    """Blocks of channels, and segments of `segment_chunks` chunks each; one program per block, segment and sequence."""

    blocks: int
    chunks: int
    segment_chunks: int
    segments: int


def divide(batch: int, channels: int, length: int, width: int, programs: int) -> Division:
    """Divide a pass over (B, D, L) with N = `width` into about `programs` programs."""
    blocks = -(-channels // division(width)[0])
    chunks = -(-length // CHUNK)
    # one segment spares the first kernel: it is better once the channels alone half fill the GPU
    wanted = 1 if 2 * batch * blocks >= programs else programs // (batch * blocks)
    segment_chunks = -(-chunks // wanted)
    return Division(blocks, chunks, segment_chunks, -(-chunks // segment_chunks))


def settings(width: int, delta_softplus: bool) -> dict[str, Any]:
    """Return the compile-time arguments of the kernels."""
    channels, states = division(width)
    sizes = {"WIDTH": width, "CHANNELS": channels, "STATES": states, "CHUNK": CHUNK, "STEPS": STEPS}
    return WARP | sizes | {"SOFTPLUS": delta_softplus}


def rows(x: Tensor | None) -> Rows | None:
    """View (B, X, L) as (B, L, X), copied only if X is not contiguous then; with the strides of B and L."""
    if x is None:
        return None
    x = x.transpose(1, 2)
    x = x if x.stride(2) == 1 else x.contiguous()
    return x, x.stride(0), x.stride(1)


def paired_rows(x: Tensor) -> Rows:
    """View as `rows` does, but in float32 and aligned to eight bytes: the kernels read two numbers at once."""
    x = x.transpose(1, 2).float()
    if x.stride(2) != 1 or x.data_ptr() % 8 or x.stride(0) % 2 or x.stride(1) % 2:
        x = x.clone(memory_format=torch.contiguous_format)
    return x, x.stride(0), x.stride(1)


def single(x: Tensor | None) -> Tensor | None:
    """Return x in float32 and contiguous."""
    return None if x is None else x.float().contiguous()


def carry_over(ends: Tensor, elapsed: Tensor, A: Tensor, initial: Tensor | None, spacing: int, reverse: bool) -> None:
    """Run the kernel `carry` on `ends` (B, slots, N, D), in place."""
    batch, slots, width, channels = ends.shape
    grid = (-(-channels // LANES), width, batch)
    sizes = (channels, elapsed.shape[1], slots, spacing)
    carry[grid](ends, elapsed, A, initial, *sizes, WIDTH=width, REVERSE=reverse, AHEAD=AHEAD, **WARP)
