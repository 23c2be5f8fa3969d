"""Triton kernels of the selective scan's forward pass: the end state and the outputs of each segment.

Steps are unrolled by STEPS, and the next ones are loaded while these are computed.
"""

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


@jit
def segment_ends(
    u, delta, A, B, bias, starts, elapsed, channels, length, segments, chunks, segment_chunks,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr, CHUNK: tl.constexpr, STEPS: tl.constexpr,
    SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """Scan every segment but the last from zero: its end state, at the place of its start, and its sum of delta."""
    channel, state, present = my_lane(channels, CHANNELS, STATES)
    segment, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    transition = load_transition(A, channel, state, present, WIDTH, STATES)
    shift = load_weight(bias, channel, present)
    first = (segment * segment_chunks).to(tl.int64) * CHUNK
    whole = tl.where(present, STEPS, 0)
    next_u = load_steps(u, batch, first, channel, whole, STEPS)
    next_delta = load_steps(delta, batch, first, channel, whole, STEPS)
    states = zeros(STATES)
    total = tl.zeros((32,), tl.float32)
    for _ in range(segment_chunks * (CHUNK // STEPS)):
        now_u, now_delta = next_u, next_delta
        remaining = steps_left(length, first + STEPS, present)
        next_u = load_steps(u, batch, first + STEPS, channel, remaining, STEPS)
        next_delta = load_steps(delta, batch, first + STEPS, channel, remaining, STEPS)
        for k in tl.static_range(STEPS):
            step = step_size(now_delta[k], shift, present, SOFTPLUS)
            total += step
            write = load_vector(B, batch, first + k, state, length, STATES)
            states = advance(states, step, step * now_u[k], transition, write, STATES)
        first += STEPS
    place = starts + ((batch * chunks + segment * segment_chunks) * WIDTH + state) * channels + channel
    store_states(place, channels, present, states, STATES)
    tl.store(elapsed + (batch * segments + segment) * channels + channel, total, mask=present & (state == 0))


@jit
def outputs(
    u, delta, z, A, B, C, D, bias, starts, y, last_state, channels, length, chunks, segment_chunks,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr, CHUNK: tl.constexpr, STEPS: tl.constexpr,
    SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """Scan every segment from the state at its start; save the states at its chunks' starts and at the very end."""
    channel, state, present = my_lane(channels, CHANNELS, STATES)
    first_chunk, batch = tl.program_id(1) * segment_chunks, tl.program_id(2).to(tl.int64)
    transition = load_transition(A, channel, state, present, WIDTH, STATES)
    shift, skip = load_weight(bias, channel, present), load_weight(D, channel, present)
    first = first_chunk.to(tl.int64) * CHUNK
    remaining = steps_left(length, first, present)
    next_u = load_steps(u, batch, first, channel, remaining, STEPS)
    next_delta = load_steps(delta, batch, first, channel, remaining, STEPS)
    next_z = next_u
    if z is not None:
        next_z = load_steps(z, batch, first, channel, remaining, STEPS)
    start = starts + ((batch * chunks + first_chunk) * WIDTH + state) * channels + channel
    states = load_states(start, channels, present, STATES)
    for _ in range(tl.minimum(segment_chunks, chunks - first_chunk)):
        store_states(start, channels, present, states, STATES)
        start += WIDTH * channels
        for _ in range(CHUNK // STEPS):
            now_u, now_delta, now_z = next_u, next_delta, next_z
            next_u = load_steps(u, batch, first + STEPS, channel, remaining - STEPS, STEPS)
            next_delta = load_steps(delta, batch, first + STEPS, channel, remaining - STEPS, STEPS)
            next_z = next_u
            if z is not None:
                next_z = load_steps(z, batch, first + STEPS, channel, remaining - STEPS, STEPS)
            for k in tl.static_range(STEPS):
                step = step_size(now_delta[k], shift, k < remaining, SOFTPLUS)
                write = load_vector(B, batch, first + k, state, length, STATES)
                states = advance(states, step, step * now_u[k], transition, write, STATES)
                read = load_vector(C, batch, first + k, state, length, STATES)
                out = read_out(states, read, CHANNELS, STATES) + skip * now_u[k]
                if z is not None:
                    out *= now_z[k] * tl.sigmoid(now_z[k])
                place = y + (batch * length + first + k) * channels + channel
                tl.store(place, out, mask=(k < remaining) & (state == 0))
            first += STEPS
            remaining -= STEPS
    if first_chunk + segment_chunks >= chunks:
        store_states(last_state + (batch * channels + channel) * WIDTH + state, 1, present, states, STATES)
