"""One step backwards through the selective scan in a Triton kernel, and the sums over channels that B and C need."""

# Kernels grow tuples of registers in unrolled loops, which has no static type.
# mypy: disable-error-code="assignment"
from __future__ import annotations

from .scan_triton_lanes import from_lane, jit, sum_over_states, tl


@jit
def halve(low, high, level: tl.constexpr):
    """Sum two values over pairs of lanes: every lane sends away the one that its partner shall own."""
    upper = (tl.arange(0, 32) >> level) % 2 == 1
    return tl.where(upper, high, low) + from_lane(tl.where(upper, low, high), 1 << level)


@jit
def sum_over_channels(values, CHANNELS: tl.constexpr, STATES: tl.constexpr):
    """Sum values that were halved once over all channels; 31 exchanges for 32 values instead of five for each."""
    for level in tl.static_range(1, 5):
        if (1 << level) < CHANNELS:
            if (2 * STATES >> level) > 1:
                kept = ()
                for n in tl.static_range(STATES >> level):
                    kept += (halve(values[n], values[n + (STATES >> level)], level),)
                values = kept
            else:
                values = (values[0] + from_lane(values[0], 1 << level),)
    return values


@jit
def first_owned(CHANNELS: tl.constexpr, STATES: tl.constexpr):
    """Return the number of the first value that `sum_over_channels` leaves in a lane: of B's, then of C's gradient."""
    lane = tl.arange(0, 32)
    number = lane * 0
    for level in tl.static_range(5):
        if (1 << level) < CHANNELS:
            number += (lane >> level) % 2 * (2 * STATES >> (level + 1))
    return number


@jit
def place_of_sums(sums_BC, batch, state, length, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr):
    """Return where a lane writes its sums for B or C of a sequence's first step; `sums_BC` is (2, blocks, B, L, N)."""
    owned = first_owned(CHANNELS, STATES)
    block = owned // STATES * tl.num_programs(0) + tl.program_id(0)
    return sums_BC + (block * tl.num_programs(2) + batch) * length * WIDTH + state + owned % STATES


@jit
def through_gate(grad, out, gate):
    """Return the gradients of the output before the gate, and of the gate."""
    sigmoid = tl.sigmoid(gate)
    return grad * gate * sigmoid, grad * out * sigmoid * (1.0 + gate * (1.0 - sigmoid))


@jit
def step_back(
    adjoint, sum_A, before, after, step, x, grad, transition, write, read, CHANNELS: tl.constexpr, STATES: tl.constexpr
):
    """Return the adjoint one step earlier, the sum for A, the sums for B and C, and the gradients of u and exponents.

    Of the last two, that of delta * u (the drive), and the sum over states of those of delta * A times A.
    """
    drive_grad = tl.zeros((32,), tl.float32)
    decay_grad = tl.zeros((32,), tl.float32)
    earlier = ()
    grown = ()
    halves = ()
    for n in tl.static_range(STATES):
        state_grad = adjoint[n] + grad * read[n]
        halves += (halve(state_grad * (step * x), grad * after[n], 0),)
        drive_grad += state_grad * write[n]
        decayed = state_grad * tl.exp2(step * transition[n])
        exponent_grad = decayed * before[n]
        decay_grad += exponent_grad * transition[n]
        grown += (sum_A[n] + exponent_grad * step,)
        earlier += (decayed,)
    sums = sum_over_channels(halves, CHANNELS, STATES)
    decay_grad = sum_over_states(decay_grad, CHANNELS) * 0.6931471805599453  # A was scaled for powers of two
    return earlier, grown, sums, sum_over_states(drive_grad, CHANNELS), decay_grad
