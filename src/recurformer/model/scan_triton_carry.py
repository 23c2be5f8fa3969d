"""The Triton kernel between the passes of a segmented scan: from the end states of segments to their start states."""

# Kernels grow tuples of registers in unrolled loops, which has no static type.
# mypy: disable-error-code="assignment"
from __future__ import annotations

from .scan_triton_lanes import jit, tl


@jit
def carry(
    ends, elapsed, A, initial, channels, segments, slots, spacing,
    WIDTH: tl.constexpr, REVERSE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Turn the state that every segment leaves, run from zero, into the state that enters it; backwards if REVERSE.

    `ends` (B, slots, N, D), where the segments' slots are `spacing` apart, is overwritten; `elapsed` (B, segments, D)
    has the segments' sums of delta; `initial` (B, D, N) or None enters the first. AHEAD segments are loaded at once.
    """
    channel = tl.program_id(0) * 32 + tl.arange(0, 32)
    number = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    present = channel < channels
    transition = tl.load(A + channel * WIDTH + number, mask=present, other=0.0) * 1.4426950408889634
    state = tl.zeros((32,), tl.float32)
    if initial is not None:
        state += tl.load(initial + (batch * channels + channel) * WIDTH + number, mask=present, other=0.0)
    for begin in range(0, segments, AHEAD):
        left = ()
        times = ()
        places = ()
        remaining = tl.where(present, segments - begin, 0)
        for k in tl.static_range(AHEAD):
            segment = begin + k
            if REVERSE:
                segment = segments - 1 - segment
            place = ends + ((batch * slots + segment * spacing) * WIDTH + number) * channels + channel
            left += (tl.load(place, mask=k + 1 < remaining, other=0.0),)  # nothing follows the last segment
            time = elapsed + (batch * segments + segment) * channels + channel
            times += (tl.load(time, mask=k + 1 < remaining, other=0.0),)
            places += (place,)
        for k in tl.static_range(AHEAD):
            tl.store(places[k], state, mask=k < remaining)
            state = tl.exp2(times[k] * transition) * state + left[k]
