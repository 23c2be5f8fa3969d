"""The selective scan as Triton kernels for CUDA, with an initial state and gradients through both ends of a sequence.

The forward pass has three launches: the end state of each chunk of steps from zero; the state that therefore enters
each; the outputs of all. The backward pass goes through the chunks from the last one and computes the states of each
again. A program is one warp that holds the states of some channels. There are no atomics: sums over channels and
sequences are written in parts and added up afterwards, so that every run gives the same bits.
"""

# Kernels grow tuples of registers in unrolled loops, which has no static type.
# mypy: disable-error-code="assignment"
from __future__ import annotations  # the kernels' annotations name Triton's types, which may be missing

import os
from typing import Any

import torch
from torch import Tensor

from .scan_inputs import NAMES, ScanInputs, scan_operator

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

WIDTHS = (4, 8, 16, 32, 64)  # states N per channel that a program can hold
CHUNK = 32  # steps
TILE = 128  # states of a program: four in each lane; with more the backward pass has too few registers
LANES, AHEAD = 128, 8  # of the carry: states of a program, and chunks that it loads at once
SEQUENCES = ("u", "delta", "B", "C", "z")  # handed to the kernels as rows (B, L, X)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def jit(function: Any) -> Any:
    """Compile for the GPU where Triton is installed."""
    return function if triton is None else triton.jit(function)


@jit
def load_row(rows, batch, step, place, mask):
    """Load numbers of one step, zero where masked; `rows` is a tensor (B, L, X) and its strides of B and L."""
    return tl.load(rows[0] + batch * rows[1] + step * rows[2] + place, mask=mask, other=0.0).to(tl.float32)


@jit
def softplus(x):
    """Return log(1 + e^x); log(1 + p) for p in [0, 1] is p times a polynomial (relative error 1.3e-7)."""
    p = tl.exp2(-1.4426950408889634 * tl.abs(x))
    series = (((p * -0.00317605701 + 0.0195425265) * p - 0.0563736111) * p + 0.105436236) * p - 0.152696669
    series = (((series * p + 0.196632743) * p - 0.249516159) * p + 0.333297104) * p - 0.499998927
    return tl.maximum(x, 0.0) + p * (series * p + 1.0)


@jit
def my_tile(A, D, bias, channels, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Return the program's channels, states' numbers, their places in a matrix (D, N), and A, D and bias there."""
    channel, number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    tile = channel[:, None] * WIDTH + number[None, :]
    transition = tl.load(A + tile, mask=tile < channels * WIDTH, other=0.0) * 1.4426950408889634  # for powers of two
    skip = tl.load(D + channel, mask=channel < channels, other=0.0) if D is not None else channel * 0.0
    shift = tl.load(bias + channel, mask=channel < channels, other=0.0) if bias is not None else channel * 0.0
    return channel, number, tile, transition, skip, shift


@jit
def read_step(u, delta, B, shift, step, at, SOFTPLUS: tl.constexpr):
    """Return which channels and numbers a step has, its u, its delta before softplus and after, and its B.

    Past the end there are none, and delta is 0, so that the state stays as it is. `at`: the sequence, the program's
    channels and numbers, and how many channels and steps there are.
    """
    batch, channel, number, channels, length = at
    exists, stored = (channel < channels) & (step + channel * 0 < length), step + number * 0 < length
    x, write = load_row(u, batch, step, channel, exists), load_row(B, batch, step, number, stored)
    raw = load_row(delta, batch, step, channel, exists) + shift
    size = softplus(raw) if SOFTPLUS else raw
    return exists, stored, x, raw, tl.where(exists, size, 0.0), write


@jit
def scan_chunks(
    u, delta, A, B, C, D, z, bias, states, elapsed, y, last_state, channels, length, chunks,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, SOFTPLUS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Scan each chunk: from zero, for its end state and its sum of delta; or for its OUTPUTS, from its true start.

    `states` (B, chunks, D, N) takes the end states, or holds the start states.
    """
    channel, number, tile, transition, skip, shift = my_tile(A, D, bias, channels, WIDTH, BLOCK)
    chunk, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    at = (batch, channel, number, channels, length)
    states += (batch * chunks + chunk) * channels * WIDTH + tile
    state = tl.load(states, mask=tile < channels * WIDTH, other=0.0) if OUTPUTS else tile * 0.0
    total = channel * 0.0
    step = chunk.to(tl.int64) * CHUNK
    for _ in range(CHUNK):
        exists, stored, x, _, size, write = read_step(u, delta, B, shift, step, at, SOFTPLUS)
        state = tl.exp2(size[:, None] * transition) * state + (size * x)[:, None] * write[None, :]
        total += size
        if OUTPUTS:
            out = tl.sum(state * load_row(C, batch, step, number, stored)[None, :], 1) + skip * x
            if z is not None:
                gate = load_row(z, batch, step, channel, exists)
                out *= gate * tl.sigmoid(gate)
            tl.store(y + (batch * length + step) * channels + channel, out, mask=exists)
        step += 1
    if not OUTPUTS:
        tl.store(states, state, mask=tile < channels * WIDTH)
        tl.store(elapsed + (batch * chunks + chunk) * channels + channel, total, mask=channel < channels)
    elif chunk == chunks - 1:
        tl.store(last_state + batch * channels * WIDTH + tile, state, mask=tile < channels * WIDTH)


@jit
def carry(states, elapsed, A, initial, channels, chunks, WIDTH: tl.constexpr, LANES: tl.constexpr, AHEAD: tl.constexpr):
    """Turn the state that every chunk leaves, run from zero, into the state that enters it, in place.

    `elapsed` (B, chunks, D) has the chunks' sums of delta; `initial` (B, D, N) or None enters the first.
    """
    place, batch = tl.program_id(0) * LANES + tl.arange(0, LANES), tl.program_id(1).to(tl.int64)
    numbers = channels * WIDTH
    transition = tl.load(A + place, mask=place < numbers, other=0.0) * 1.4426950408889634
    state = place * 0.0
    if initial is not None:
        state += tl.load(initial + batch * numbers + place, mask=place < numbers, other=0.0)
    for begin in range(0, chunks, AHEAD):
        ends = ()
        times = ()
        remaining = tl.where(place < numbers, chunks - begin, 0)
        for k in tl.static_range(AHEAD):
            chunk = batch * chunks + begin + k
            ends += (tl.load(states + chunk * numbers + place, mask=k + 1 < remaining, other=0.0),)  # none of the last
            times += (tl.load(elapsed + chunk * channels + place // WIDTH, mask=k + 1 < remaining, other=0.0),)
        for k in tl.static_range(AHEAD):
            tl.store(states + (batch * chunks + begin + k) * numbers + place, state, mask=k < remaining)
            state = tl.exp2(times[k] * transition) * state + ends[k]


@jit
def gradients(
    grad_y, u, delta, A, B, C, D, z, bias, starts, grad_last, scratch,
    du, ddelta, dz, sums_A, sums_B, sums_C, sums_D, sums_bias, dinitial, channels, length, chunks,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """All gradients of some channels of one sequence, chunk by chunk from the end.

    `scratch` holds the states before and after every step of the present chunk. Several programs contribute to the
    gradients of B and C, (blocks, B, L, N), and several sequences to those of A, D and the bias, (B, D, N) and (B, D).
    """
    channel, number, tile, transition, skip, shift = my_tile(A, D, bias, channels, WIDTH, BLOCK)
    block, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = (batch, channel, number, channels, length)
    inside, whole = tile < channels * WIDTH, batch * channels * WIDTH + tile
    scratch += ((batch * tl.num_programs(0) + block) * (CHUNK + 1) - block) * (BLOCK * WIDTH) + tile
    part = (block * tl.num_programs(1) + batch) * length
    sum_A, sum_D, sum_bias = tile * 0.0, channel * 0.0, channel * 0.0
    adjoint = tile * 0.0  # the gradient of the state after the present step
    if grad_last is not None:
        adjoint += tl.load(grad_last + whole, mask=inside, other=0.0)
    for back in range(chunks):
        chunk = batch * chunks + chunks - 1 - back
        state = tl.load(starts + chunk * channels * WIDTH + tile, mask=inside, other=0.0)
        tl.store(scratch, state)
        step = (chunk - batch * chunks) * CHUNK
        for k in range(CHUNK):
            _, _, x, _, size, write = read_step(u, delta, B, shift, step, at, SOFTPLUS)
            state = tl.exp2(size[:, None] * transition) * state + (size * x)[:, None] * write[None, :]
            tl.store(scratch + (k + 1) * (BLOCK * WIDTH), state)
            step += 1
        tl.debug_barrier()
        for k in range(CHUNK):
            step -= 1
            exists, stored, x, raw, size, write = read_step(u, delta, B, shift, step, at, SOFTPLUS)
            read, grad = load_row(C, batch, step, number, stored), load_row(grad_y, batch, step, channel, exists)
            after = tl.load(scratch + (CHUNK - k) * (BLOCK * WIDTH))
            place, sums = (batch * length + step) * channels + channel, (part + step) * WIDTH + number
            if z is not None:
                gate = load_row(z, batch, step, channel, exists)
                sigmoid = tl.sigmoid(gate)
                out = tl.sum(after * read[None, :], 1) + skip * x
                tl.store(dz + place, grad * out * sigmoid * (1.0 + gate * (1.0 - sigmoid)), mask=exists)
                grad *= gate * sigmoid
            state_grad = adjoint + grad[:, None] * read[None, :]
            tl.store(sums_B + sums, tl.sum(state_grad * (size * x)[:, None], 0), mask=stored)
            tl.store(sums_C + sums, tl.sum(grad[:, None] * after, 0), mask=stored)
            drive_grad = tl.sum(state_grad * write[None, :], 1)  # of delta * u
            adjoint = tl.exp2(size[:, None] * transition) * state_grad
            exponent_grad = adjoint * tl.load(scratch + (CHUNK - 1 - k) * (BLOCK * WIDTH))  # of delta * A
            sum_A += exponent_grad * size[:, None]
            raw_grad = drive_grad * x + tl.sum(exponent_grad * transition, 1) * 0.6931471805599453  # A was scaled
            raw_grad = tl.where(exists, raw_grad * tl.sigmoid(raw) if SOFTPLUS else raw_grad, 0.0)
            tl.store(ddelta + place, raw_grad, mask=exists)
            tl.store(du + place, drive_grad * size + grad * skip, mask=exists)
            sum_D += grad * x
            sum_bias += raw_grad
        tl.debug_barrier()
    tl.store(sums_A + whole, sum_A, mask=inside)
    tl.store(sums_D + batch * channels + channel, sum_D, mask=channel < channels)
    tl.store(sums_bias + batch * channels + channel, sum_bias, mask=channel < channels)
    if dinitial is not None:
        tl.store(dinitial + whole, adjoint, mask=inside)


def rows(x: Tensor) -> tuple[Tensor, int, int]:
    """View (B, X, L) as (B, L, X), copied only if X is not contiguous then; with the strides of B and L."""
    x = x.transpose(1, 2)
    x = x if x.stride(2) == 1 else x.contiguous()
    return x, x.stride(0), x.stride(1)


def settings(width: int, delta_softplus: bool) -> dict[str, Any]:
    """Return the compile-time arguments of the kernels but the carry's."""
    return {"WIDTH": width, "BLOCK": TILE // width, "CHUNK": CHUNK, "SOFTPLUS": delta_softplus, "num_warps": 1}


def _read(*inputs: Tensor | None) -> list[Any]:
    """Return the tensors of `ScanInputs` as the kernels read them: sequences as rows, all others in float32."""
    return [
        None if x is None else rows(x) if name in SEQUENCES else x.float().contiguous()
        for name, x in zip(NAMES, inputs, strict=True)
    ]


def _forward(*inputs):
    """Return y (B, D, L), the last state (B, D, N) and the states at the chunks' starts (B, chunks, D, N)."""
    y, last_state, starts = _empty_outputs(*inputs)
    batch, chunks, channels, width = starts.shape
    fixed, (*read, initial) = settings(width, inputs[-1]), _read(*inputs[:-1])
    blocks, elapsed = -(-channels // fixed["BLOCK"]), starts.new_empty(batch, chunks, channels)
    arguments = (*read, starts, elapsed, y, last_state, channels, y.shape[2], chunks)
    with torch.cuda.device_of(y):
        if chunks > 1:
            scan_chunks[blocks, chunks - 1, batch](*arguments, **fixed, OUTPUTS=False)
        carry[-(-channels * width // LANES), batch](
            starts, elapsed, read[2], initial, channels, chunks, WIDTH=width, LANES=LANES, AHEAD=AHEAD
        )
        scan_chunks[blocks, chunks, batch](*arguments, **fixed, OUTPUTS=True)
    return y, last_state, starts


def _empty_outputs(u, delta, A, *_):
    (batch, channels, length), width = u.shape, A.shape[1]
    y = u.new_empty(batch, length, channels).transpose(1, 2)  # the output projection reads it as (B, L, D)
    last_state = u.new_empty(batch, channels, width, dtype=torch.float32)
    return y, last_state, u.new_empty(batch, (length + CHUNK - 1) // CHUNK, channels, width, dtype=torch.float32)


def _backward(grad_y, grad_last, starts, *inputs):
    """Return the gradients of all tensors; empty for an absent one."""
    (batch, chunks, channels, width), length = starts.shape, inputs[0].shape[2]
    fixed = settings(width, inputs[-1])
    blocks = -(-channels // fixed["BLOCK"])
    du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial = _empty_gradients(grad_y, grad_last, starts, *inputs)
    sums_A, (sums_D, sums_bias) = starts.new_empty(batch, channels, width), starts.new_empty(2, batch, channels)
    sums_B, sums_C = starts.new_empty(2, blocks, batch, length, width)
    scratch = starts.new_empty(batch, blocks, CHUNK + 1, TILE)
    with torch.cuda.device_of(starts):
        gradients[blocks, batch](
            rows(torch.zeros_like(inputs[0]) if grad_y is None else grad_y), *_read(*inputs[:-1])[:-1], starts,
            None if grad_last is None else grad_last.float().contiguous(), scratch,
            du, ddelta, dz if dz.numel() else None, sums_A, sums_B, sums_C, sums_D, sums_bias,
            dinitial if dinitial.numel() else None, channels, length, chunks, **fixed,
        )  # fmt: skip
    sums = (dA, sums_A), (dB.transpose(1, 2), sums_B), (dC.transpose(1, 2), sums_C), (dD, sums_D), (dbias, sums_bias)
    for grad, parts in sums:
        if grad.numel():
            grad.copy_(parts.sum(0))
    return [du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial]


def _empty_gradients(grad_y, grad_last, starts, *inputs):
    return [
        starts.new_empty(0) if x is None
        else x.mT.new_empty(x.mT.shape).mT if name in SEQUENCES else x.new_empty(x.shape)
        for name, x in zip(NAMES, inputs[:-1], strict=True)
    ]  # fmt: skip


chunked_scan, chunked_scan_backward = scan_operator(
    __name__, "chunked_scan", (_forward, _backward), (_empty_outputs, _empty_gradients)
)


def refuses(u: Tensor, A: Tensor, delta_softplus: bool) -> str | None:
    """Return why the kernels cannot take these inputs, or None."""
    if triton is None or not (INTERPRETED or torch.cuda.is_available()):
        return "Triton is not installed" if triton is None else "there is no CUDA device"
    if not (u.is_cuda or INTERPRETED):
        return f"the Triton kernels take CUDA tensors, the input is on {u.device}"
    if A.shape[1] not in WIDTHS or u.dtype == torch.float64:
        return f"the Triton kernels take up to float32 and N in {WIDTHS}, not {u.dtype} and N={A.shape[1]}"
    return None


def scan_triton(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the Triton kernels; see `recurformer.model.scan.selective_scan`."""
    y, last_state, _ = chunked_scan(*inputs)
    return y, last_state
