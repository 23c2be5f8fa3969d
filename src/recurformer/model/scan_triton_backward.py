"""Triton kernels of the selective scan's backward pass, in segments as the forward pass, but from their ends.

Several programs contribute to the gradients of A, B, C, D and the bias: each writes its part, to be summed afterwards.
"""

# Kernels grow tuples of registers in unrolled loops, which has no static type.
# mypy: disable-error-code="assignment"
from __future__ import annotations

from .scan_triton_lanes import (
    advance,
    jit,
    load_states,
    load_steps,
    load_transition,
    load_vector,
    load_weight,
    my_lane,
    read_out,
    step_size,
    steps_left,
    store_states,
    tl,
    zeros,
)
from .scan_triton_step_back import place_of_sums, step_back, through_gate


@jit
def segment_adjoints(
    grad_y, delta, z, A, C, bias, adjoints, elapsed, channels, length, segments, chunks, segment_chunks,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr, CHUNK: tl.constexpr, STEPS: tl.constexpr,
    SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """The gradient of every segment's initial state (but the first's) due to its own outputs, and its sum of delta."""
    channel, state, present = my_lane(channels, CHANNELS, STATES)
    segment, batch = tl.program_id(1) + 1, tl.program_id(2).to(tl.int64)
    transition = load_transition(A, channel, state, present, WIDTH, STATES)
    shift = load_weight(bias, channel, present)
    adjoint = zeros(STATES)
    total = tl.zeros((32,), tl.float32)
    first = tl.minimum((segment + 1) * segment_chunks, chunks).to(tl.int64) * CHUNK
    for _ in range(tl.minimum(segment_chunks, chunks - segment * segment_chunks) * (CHUNK // STEPS)):
        first -= STEPS
        remaining = steps_left(length, first, present)
        grads = load_steps(grad_y, batch, first, channel, remaining, STEPS)
        raw = load_steps(delta, batch, first, channel, remaining, STEPS)
        if z is not None:
            gates = load_steps(z, batch, first, channel, remaining, STEPS)
        for k in tl.static_range(STEPS - 1, -1, -1):
            step = step_size(raw[k], shift, k < remaining, SOFTPLUS)
            total += step
            grad = grads[k]
            if z is not None:
                grad *= gates[k] * tl.sigmoid(gates[k])
            read = load_vector(C, batch, first + k, state, length, STATES)
            earlier = ()
            for n in tl.static_range(STATES):
                earlier += (tl.exp2(step * transition[n]) * (adjoint[n] + grad * read[n]),)
            adjoint = earlier
    place = adjoints + ((batch * segments + segment) * WIDTH + state) * channels + channel
    store_states(place, channels, present, adjoint, STATES)
    tl.store(elapsed + (batch * segments + segment) * channels + channel, total, mask=present & (state == 0))


@jit
def revisit(
    states, scratch, u, delta, B, shift, transition, batch, first, channel, state, present, length,
    CHUNK: tl.constexpr, STEPS: tl.constexpr, STATES: tl.constexpr, SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """Scan a chunk again, leaving the states at the starts of its blocks of STEPS in `scratch`; return its end's."""
    for _ in range(CHUNK // STEPS):
        store_states(scratch, 32, None, states, STATES)
        scratch += STATES * 32
        remaining = steps_left(length, first, present)
        inputs = load_steps(u, batch, first, channel, remaining, STEPS)
        raw = load_steps(delta, batch, first, channel, remaining, STEPS)
        for k in tl.static_range(STEPS):
            step = step_size(raw[k], shift, k < remaining, SOFTPLUS)
            write = load_vector(B, batch, first + k, state, length, STATES)
            states = advance(states, step, step * inputs[k], transition, write, STATES)
        first += STEPS
    return states


@jit
def states_within(
    start, end, inputs, raw, remaining, B, shift, transition, batch, first, state, length,
    STEPS: tl.constexpr, STATES: tl.constexpr, SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """Return the states before and after every step of a block, of which the outer ones are known."""
    history = (start,)
    for k in tl.static_range(STEPS - 1):
        step = step_size(raw[k], shift, k < remaining, SOFTPLUS)
        write = load_vector(B, batch, first + k, state, length, STATES)
        history += (advance(history[k], step, step * inputs[k], transition, write, STATES),)
    return history + (end,)  # noqa: RUF005 (Triton has no starred tuples)


@jit
def gradients(
    grad_y, u, delta, z, A, B, C, D, bias, starts, adjoints, scratch,
    du, ddelta, dz, sums_A, sums_BC, sums_D, sums_bias, dinitial,
    channels, length, segments, chunks, segment_chunks,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr, CHUNK: tl.constexpr, STEPS: tl.constexpr,
    SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """All gradients of every segment, from that of the state at its end; the states are computed again by chunks."""
    channel, state, present = my_lane(channels, CHANNELS, STATES)
    segment, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    part, writes = batch * segments + segment, present & (state == 0)
    transition = load_transition(A, channel, state, present, WIDTH, STATES)
    shift, skip = load_weight(bias, channel, present), load_weight(D, channel, present)
    adjoint = load_states(adjoints + (part * WIDTH + state) * channels + channel, channels, present, STATES)
    scratch += (part * tl.num_programs(0) + tl.program_id(0)) * (CHUNK // STEPS * STATES * 32) + tl.arange(0, 32)
    sums_BC = place_of_sums(sums_BC, batch, state, length, WIDTH, CHANNELS, STATES)
    sum_A = zeros(STATES)
    sum_D, sum_bias = tl.zeros((32,), tl.float32), tl.zeros((32,), tl.float32)
    end_chunk = tl.minimum((segment + 1) * segment_chunks, chunks)
    first = end_chunk.to(tl.int64) * CHUNK
    for reverse in range(end_chunk - segment * segment_chunks):
        saved = starts + ((batch * chunks + end_chunk - 1 - reverse) * WIDTH + state) * channels + channel
        states = revisit(
            load_states(saved, channels, present, STATES), scratch, u, delta, B, shift, transition,
            batch, first - CHUNK, channel, state, present, length, CHUNK, STEPS, STATES, SOFTPLUS,
        )  # fmt: skip
        for block in range(CHUNK // STEPS):
            first -= STEPS
            remaining = steps_left(length, first, present)
            inputs = load_steps(u, batch, first, channel, remaining, STEPS)
            raw = load_steps(delta, batch, first, channel, remaining, STEPS)
            grads = load_steps(grad_y, batch, first, channel, remaining, STEPS)
            if z is not None:
                gates = load_steps(z, batch, first, channel, remaining, STEPS)
            start = load_states(scratch + (CHUNK // STEPS - 1 - block) * (STATES * 32), 32, None, STATES)
            history = states_within(
                start, states, inputs, raw, remaining, B, shift, transition, batch, first, state, length,
                STEPS, STATES, SOFTPLUS,
            )  # fmt: skip
            for k in tl.static_range(STEPS - 1, -1, -1):
                exists, x, grad = k < remaining, inputs[k], grads[k]
                step = step_size(raw[k], shift, exists, SOFTPLUS)
                write = load_vector(B, batch, first + k, state, length, STATES)
                read = load_vector(C, batch, first + k, state, length, STATES)
                place = (batch * length + first + k) * channels + channel
                if z is not None:
                    out = read_out(history[k + 1], read, CHANNELS, STATES) + skip * x
                    grad, gate_grad = through_gate(grad, out, gates[k])
                    tl.store(dz + place, gate_grad, mask=exists & writes)
                adjoint, sum_A, sums, drive_grad, decay_grad = step_back(
                    adjoint, sum_A, history[k], history[k + 1], step, x, grad, transition, write, read, CHANNELS, STATES
                )
                for n in tl.static_range(len(sums)):
                    tl.store(sums_BC + (first + k) * WIDTH + n, sums[n], mask=first + k < length + channel * 0)
                raw_grad = drive_grad * x + decay_grad
                if SOFTPLUS:
                    raw_grad *= tl.sigmoid(raw[k] + shift)
                raw_grad = tl.where(exists, raw_grad, 0.0)
                tl.store(ddelta + place, raw_grad, mask=exists & writes)
                tl.store(du + place, drive_grad * step + grad * skip, mask=exists & writes)
                sum_D += grad * x
                sum_bias += raw_grad
            states = start
    store_states(sums_A + (part * WIDTH + state) * channels + channel, channels, present, sum_A, STATES)
    tl.store(sums_D + part * channels + channel, sum_D, mask=writes)
    tl.store(sums_bias + part * channels + channel, sum_bias, mask=writes)
    if dinitial is not None:  # noqa: SIM102 (known to the compiler, the other is not)
        if segment == 0:
            store_states(dinitial + (batch * channels + channel) * WIDTH + state, 1, present, adjoint, STATES)
