"""One decoding step of the Mamba block as two Triton kernels that update its states in place, for inference only.

They wait for nothing and allocate their output alone, so a CUDA graph can capture them. On CPU tensors they run in
Triton's interpreter only; `scan_triton.unusable` says whether they run here at all.
"""

from __future__ import annotations  # the kernels' annotations name Triton's types, which may be missing

import torch
from torch import Tensor

from .forced import allowed
from .scan_inputs import StepInputs
from .scan_triton import unusable
from .scan_triton_lanes import jit, step_size, tl

CONV_CHANNELS, STATE_CHANNELS = 128, 32  # channels of a program, which has four warps
WARPS = 4


@jit
def convolve(
    x, x_batch, window, window_batch, window_channel, window_tap, weight, bias, y, channels,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Shift the window by one step and read it, one lane per channel."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    batch = tl.program_id(1).to(tl.int64)
    present = channel < channels
    window += batch * window_batch + channel * window_channel
    newest = tl.load(x + batch * x_batch + channel, mask=present, other=0.0)
    total = newest.to(tl.float32) * tl.load(weight + channel * TAPS + TAPS - 1, mask=present, other=0.0).to(tl.float32)
    if bias is not None:
        total += tl.load(bias + channel, mask=present, other=0.0).to(tl.float32)
    for tap in tl.static_range(TAPS - 1):
        later = tl.load(window + (tap + 1) * window_tap, mask=present, other=0.0)
        total += later.to(tl.float32) * tl.load(weight + channel * TAPS + tap, mask=present, other=0.0).to(tl.float32)
        tl.store(window + tap * window_tap, later, mask=present)
    tl.store(window + (TAPS - 1) * window_tap, newest, mask=present)
    tl.store(y + batch * channels + channel, total * tl.sigmoid(total), mask=present)


@jit
def advance_state(
    u, delta, z, A, B, C, D, state, state_batch, state_channel, state_number, y, channels,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Advance the states of a block of channels by one step and read them; u, delta, z, B, C are (tensor, stride)."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = tl.arange(0, WIDTH)
    batch = tl.program_id(1).to(tl.int64)
    present = channel < channels
    value = tl.load(u[0] + batch * u[1] + channel, mask=present, other=0.0).to(tl.float32)
    raw = tl.load(delta[0] + batch * delta[1] + channel, mask=present, other=0.0).to(tl.float32)
    step = step_size(raw, 0.0, present, True)
    write = tl.load(B[0] + batch * B[1] + number).to(tl.float32)
    read = tl.load(C[0] + batch * C[1] + number).to(tl.float32)
    transition = tl.load(A + channel[:, None] * WIDTH + number[None, :], mask=present[:, None], other=0.0)
    place = state + batch * state_batch + channel[:, None] * state_channel + number[None, :] * state_number
    states = tl.load(place, mask=present[:, None], other=0.0)
    decay = tl.exp2(step[:, None] * (transition * 1.4426950408889634))
    states = decay * states + (step * value)[:, None] * write[None, :]
    tl.store(place, states, mask=present[:, None])
    out = tl.sum(states * read[None, :], 1) + tl.load(D + channel, mask=present, other=0.0).to(tl.float32) * value
    gate = tl.load(z[0] + batch * z[1] + channel, mask=present, other=0.0).to(tl.float32)
    tl.store(y + batch * channels + channel, out * gate * tl.sigmoid(gate), mask=present)


def _row(x: Tensor) -> tuple[Tensor, int]:
    x = x if x.stride(1) == 1 else x.contiguous()
    return x, x.stride(0)


def wanted(x: Tensor) -> bool:
    """Return whether a step of x is one for these kernels: CUDA, no gradients, up to float32, not traced."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not allowed("triton", "mamba_ssm"):
        return False
    return x.is_cuda and x.dtype != torch.float64 and unusable() is None


@torch.no_grad()
def conv_step(x: Tensor, window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return silu(convolution) of the newest step, (B, D), and shift `window` by it.

    Args:
        x: the newest step (B, D).
        window: the last d_conv steps (B, D, d_conv), the newest last; updated in place.
        weight: taps of the depthwise convolution (D, d_conv).
        bias: of the convolution (D,) or None.
    """
    batch, channels = x.shape
    y = x.new_empty(batch, channels)
    grid = (-(-channels // CONV_CHANNELS), batch)
    with torch.cuda.device_of(x):
        convolve[grid](
            *_row(x), window, *window.stride(), weight.contiguous(), bias, y, channels,
            TAPS=weight.shape[1], BLOCK=CONV_CHANNELS, num_warps=WARPS,
        )  # fmt: skip
    return y


@torch.no_grad()
def state_step(inputs: StepInputs) -> Tensor:
    """Return the scan's output of one step, (B, D), and advance the float32 state by it; N is a power of two."""
    u, delta, A, B, C, D, z, state = inputs
    batch, channels = u.shape
    y = u.new_empty(batch, channels)
    grid = (-(-channels // STATE_CHANNELS), batch)
    with torch.cuda.device_of(u):
        advance_state[grid](
            _row(u), _row(delta), _row(z), A.contiguous(), _row(B), _row(C), D, state, *state.stride(), y, channels,
            WIDTH=A.shape[1], BLOCK=STATE_CHANNELS, num_warps=WARPS,
        )  # fmt: skip
    return y
