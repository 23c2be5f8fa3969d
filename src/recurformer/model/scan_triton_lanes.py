"""Shared by the Triton kernels of the selective scan: Triton itself where it is installed, and arithmetic per lane.

A program is one warp and every vector has 32 elements, one per lane: the compiler has no layout to choose. Lane i keeps
STATES states of channel i % CHANNELS in registers, as a tuple of vectors. Up to 16 states that is all of a channel's,
so that a step needs no exchange between lanes; more are divided among lanes.
"""

# Kernels grow tuples of registers in unrolled loops, which has no static type.
# mypy: disable-error-code="assignment"
from __future__ import annotations  # the annotations below name Triton's types, which may be missing

from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

LANES = 32
LANE_STATES = 16  # more of them in one lane and the backward pass has too few registers


def jit(function: Any) -> Any:
    """Compile for the GPU where Triton is installed."""
    return function if triton is None else triton.jit(function)


def division(width: int) -> tuple[int, int]:
    """Return channels per program and states per lane for N = `width` states per channel."""
    states = min(width, LANE_STATES)
    return LANES * states // width, states


@jit
def my_lane(channels, CHANNELS: tl.constexpr, STATES: tl.constexpr):
    """Return the lane's channel, the first of its states, and whether the channel exists."""
    lane = tl.arange(0, 32)
    channel = tl.program_id(0) * CHANNELS + lane % CHANNELS
    return channel, (lane // CHANNELS) * STATES, channel < channels


@jit
def zeros(STATES: tl.constexpr):
    """Return states that are zero."""
    states = ()
    for _ in tl.static_range(STATES):
        states += (tl.zeros((32,), tl.float32),)
    return states


@jit
def load_states(pointer, stride, mask, STATES: tl.constexpr):
    """Load a lane's states, `stride` elements apart."""
    states = ()
    for n in tl.static_range(STATES):
        states += (tl.load(pointer + n * stride, mask=mask, other=None if mask is None else 0.0),)
    return states


@jit
def store_states(pointer, stride, mask, states, STATES: tl.constexpr):
    """Store a lane's states, `stride` elements apart."""
    for n in tl.static_range(STATES):
        tl.store(pointer + n * stride, states[n], mask=mask)


@jit
def load_transition(A, channel, state, present, WIDTH: tl.constexpr, STATES: tl.constexpr):
    """Load a lane's part of A, scaled for powers of two instead of e."""
    row = load_states(A + channel * WIDTH + state, 1, present, STATES)
    scaled = ()
    for n in tl.static_range(STATES):
        scaled += (row[n] * 1.4426950408889634,)
    return scaled


@jit
def load_weight(weight, channel, present):
    """Load D or the bias of delta; zero if there is none."""
    loaded = tl.zeros((32,), tl.float32)
    if weight is not None:
        loaded += tl.load(weight + channel, mask=present, other=0.0)
    return loaded


@jit
def steps_left(length, first, present):
    """Return how many steps there are from `first` on; none for a channel that does not exist."""
    return tl.where(present, (length - first).to(tl.int32), 0)


@jit
def load_steps(rows, batch, first, channel, remaining, STEPS: tl.constexpr):
    """Load a lane's channel at STEPS steps, zero past the end; `rows` is (B, L, D) and its strides of B and L."""
    place = rows[0] + (batch * rows[1] + first * rows[2]) + channel
    values = ()
    for k in tl.static_range(STEPS):
        values += (tl.load(place + k * rows[2], mask=k < remaining, other=0.0).to(tl.float32),)
    return values


@jit
def load_vector(rows, batch, step, state, length, STATES: tl.constexpr):
    """Load a lane's part of B_t or C_t, in pairs: most loads are these. Past the end the last ones serve."""
    place = rows[0] + (batch * rows[1] + tl.minimum(step, length - 1) * rows[2]) + state
    pairs = place.to(tl.pointer_type(tl.uint64))
    values = ()
    for n in tl.static_range(STATES // 2):
        pair = tl.load(pairs + n)
        first, second = pair.to(tl.uint32), (pair >> 32).to(tl.uint32)
        values += (first.to(tl.float32, bitcast=True), second.to(tl.float32, bitcast=True))
    return values


@jit
def softplus(x):
    """Return log(1 + e^x); log(1 + p) for p in [0, 1] is p times a polynomial (relative error 1.3e-7)."""
    power = tl.exp2(-1.4426950408889634 * tl.abs(x))
    series = power * -0.00317605701 + 0.0195425265
    series = series * power - 0.0563736111
    series = series * power + 0.105436236
    series = series * power - 0.152696669
    series = series * power + 0.196632743
    series = series * power - 0.249516159
    series = series * power + 0.333297104
    series = series * power - 0.499998927
    series = series * power + 1.0
    return tl.maximum(x, 0.0) + power * series


@jit
def step_size(raw, bias, exists, SOFTPLUS: tl.constexpr):
    """Return delta; 0 at steps past the end, which then leave the state alone."""
    raw += bias
    if SOFTPLUS:
        raw = softplus(raw)
    return tl.where(exists, raw, 0.0)


@jit
def advance(states, delta, drive, transition, write, STATES: tl.constexpr):
    """Return the states one step later."""
    following = ()
    for n in tl.static_range(STATES):
        following += (tl.exp2(delta * transition[n]) * states[n] + drive * write[n],)
    return following


@jit
def read_out(states, read, CHANNELS: tl.constexpr, STATES: tl.constexpr):
    """Return C_t h_t."""
    out = states[0] * read[0]
    for n in tl.static_range(1, STATES):
        out += states[n] * read[n]
    return sum_over_states(out, CHANNELS)


@jit
def from_lane(x, distance: tl.constexpr):
    """Return the value of the lane whose number differs in one bit."""
    return tl.gather(x, tl.arange(0, 32) ^ distance, 0)


@jit
def sum_over_states(x, CHANNELS: tl.constexpr):
    """Return the sum over the lanes that share a channel."""
    for level in tl.static_range(5):
        if (CHANNELS << level) < 32:
            x += from_lane(x, CHANNELS << level)
    return x
