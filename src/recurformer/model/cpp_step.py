"""The C++ kernels of one decoding step as functions on tensors, and of other work that has no gradients.

They have no torch operator around them, which would cost more than the step does.
"""

from collections.abc import Iterable, Sequence
from ctypes import Array, Structure
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from . import native
from .cpp import PARALLEL_FROM
from .native import Arguments, fields, structure
from .scan_inputs import forced

ROWS = (torch.float32, torch.bfloat16)  # types of the rows that a step reads; sums are of float32
SHARED_FROM = 2**15  # weights of a matrix; fewer are not worth waking a second thread
MOST_ROWS = 8  # of a batch in a step; more are quicker by torch's matrix products


class StepInputs(NamedTuple):
    """One step of a scan: u, delta, z are (B, D), `B` and `C` (B, N); softplus makes delta positive.

    `A` (D, N), negative, and `D` (D,) are in the precision of `state` (B, D, N), which the step updates.
    """

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    z: Tensor
    state: Tensor


class BlockInputs(NamedTuple):
    """One step of a Mamba block, from its input to the gated channels; all but x without gaps.

    `A`, `D` and `state` are of float32, all others of one type, float32 or bfloat16.

    `x` is (B, features), `in_proj` (2 D, features), the convolution's `weight` (D, 1, taps) and `bias` (D,).
    `selection` (S + 2 N, D) and its bias give S numbers for the step size, `B` and `C`. `step_weight` (D, S) and
    `step_bias` (D,) make the step size of them, or are None where S = D and they are it already. `window` (B, D, taps)
    and `state` (B, D, N) are updated.
    """

    x: Tensor
    in_proj: Tensor
    weight: Tensor
    bias: Tensor
    selection: Tensor
    selection_bias: Tensor | None
    step_weight: Tensor | None
    step_bias: Tensor | None
    window: Tensor
    A: Tensor
    D: Tensor
    state: Tensor

    def taken(self) -> bool:
        """Return whether the kernel takes them: for few rows on a processor, without gradients."""
        few = len(self.x) <= MOST_ROWS
        return few and takes(self[:1], self[1:-3], self.x.dtype) and takes((), self[-3:])


ROW, ROW_OF_STATES = "batch channels", "batch states"
StepArguments = structure(
    "StepArguments",
    {
        "u": ROW,
        "delta": ROW,
        "A": "channels states",
        "B": ROW_OF_STATES,
        "C": ROW_OF_STATES,
        "D": "channels",
        "z": ROW,
        "state": f"{ROW} states",
        "y": ROW,
    },
    "u_stride delta_stride z_stride B_stride C_stride batch channels states",
)
WindowArguments = structure(
    "WindowArguments",
    {"x": ROW, "weight": "channels taps", "bias": "?channels", "window": f"{ROW} taps", "y": ROW},
    "x_stride batch channels taps",
)
BlockArguments = structure(
    "BlockArguments",
    {
        "x": "batch features half",
        "in_proj": "projected features half",
        "weight": "channels one taps half",
        "bias": "channels half",
        "selection": "selected channels half",
        "selection_bias": "?selected half",
        "step_weight": "?channels steps half",
        "step_bias": "?channels half",
        "window": f"{ROW} taps half",
        "A": "channels states",
        "D": "channels",
        "state": f"{ROW} states",
        "y": f"{ROW} half",
    },
    "x_stride batch features channels steps states taps",
    "threads half",
)


class WindowStepInputs(NamedTuple):
    """A step of a layer's windows or of its retention, or an input's beginning; all of one type, float32 or bfloat16.

    Queries (B, L, heads, D), keys (B, L, KV heads, D) and values (B, L, KV heads * D) are not rotated yet. `cos` and
    `sin` are (B or 1, L, rotated features), or None in a layer without positions. `center` (KV heads, D) is taken from
    the keys where it is there. `seen` (B, 1), the number of tokens before a step, is updated; None at the beginning. So
    are the `slots` of each window (B, held, its KV heads, width), which has some for the new tokens. `windows` names of
    each the tokens of its ring, its bits and its width in bytes; `groups` of each KV head the members of `WindowGroup`.
    `whole`, keys and values (B, KV heads, tokens and more, D) of which none is dropped, comes before the windows.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    cos: Tensor | None
    sin: Tensor | None
    groups: tuple[tuple[int, ...], ...]
    center: Tensor | None = None
    seen: Tensor | None = None
    slots: Sequence[Tensor] = ()
    windows: Sequence[tuple[int, int, int]] = ()
    sinks: int = 0
    whole: tuple[Tensor, Tensor] | None = None


ENDLESS = 2**62
"""Tokens of a ring that never wraps."""


class WindowSlots(Structure):
    """The ctypes twin of a window's slots."""

    _fields_ = fields("keys values", "row slot group held tokens bits")


class WindowGroup(Structure):
    """The ctypes twin of a KV head.

    Its window, its place in there, its first query head and their number; its place and that of its first query head in
    the order of windows.
    """

    _fields_ = fields(sizes="window place first_query queries sorted sorted_query")


class WindowStepArguments(Structure):
    """The ctypes twin of a step's rows and sizes."""

    _fields_ = fields(
        "queries keys values cos sin center y entries seen",
        "queries_stride keys_stride values_stride cos_stride sin_stride queries_step keys_step values_step"
        " batch length heads groups dim turned sinks centered",
        counts="threads half",
    )


class RetentionArguments(Structure):
    """The ctypes twin of a retention's state."""

    _fields_ = fields("decays state", "state_stride rates")


HadamardArguments = structure("HadamardArguments", {"x": "rows dim", "y": "rows dim"}, "x_stride rows dim", "threads")


def hadamard(x: Tensor) -> Tensor:
    """Return x (..., D) times Hadamard's orthonormal matrix, by blocks of the largest power of two that divides D."""
    rows = x.reshape(-1, x.shape[-1])
    y = rows.new_empty(rows.shape)
    threads = 1 if x.numel() < PARALLEL_FROM else torch.get_num_threads()
    sizes = {"x_stride": rows.stride(0), "rows": len(rows), "dim": x.shape[-1], "threads": threads}
    native.call("hadamard_rows", HadamardArguments.of({"x": rows, "y": y}, sizes))
    return y.view(x.shape)


def takes(rows: Iterable[Tensor | None], dense: Iterable[Tensor | None], dtype: torch.dtype = torch.float32) -> bool:
    """Return whether a step's kernels read `rows`, parts of wider ones too, and `dense` tensors, all of one of `ROWS`.

    The kernels have no gradients and cannot be compiled. None stands for a tensor that is not needed.
    """
    if dtype not in ROWS or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if forced() not in (None, "cpp") or native.refuses() is not None:
        return False
    if any(x is not None and (x.dtype != dtype or not x.is_cpu or x.stride(-1) != 1) for x in rows):
        return False
    return all(x is None or (x.dtype == dtype and x.is_cpu and x.is_contiguous()) for x in dense)


def conv_step(x: Tensor, window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Shift x (B, D) into `window` (B, D, taps) and return silu(bias + weight . window), (B, D)."""
    y = x.new_empty(x.shape)
    tensors = {"x": x, "weight": weight, "bias": bias, "window": window, "y": y}
    sizes = {"x_stride": x.stride(0), "batch": len(x), "channels": x.shape[1], "taps": weight.shape[1]}
    native.call("convolution_step", WindowArguments.of(tensors, sizes))
    return y


def state_step(inputs: StepInputs) -> Tensor:
    """Advance the state by one step, in place; returns y (B, D)."""
    y = inputs.u.new_empty(inputs.u.shape)
    strides = {f"{name}_stride": getattr(inputs, name).stride(0) for name in ("u", "delta", "z", "B", "C")}
    sizes = {"batch": len(y), "channels": y.shape[1], "states": inputs.A.shape[1]}
    native.call("scan_step", StepArguments.of({**inputs._asdict(), "y": y}, strides | sizes))
    return y


def threads_of(weights: int) -> int:
    """Return how many threads share a product that reads so many weights."""
    return 1 if weights < SHARED_FROM else torch.get_num_threads()


def block_arguments(inputs: BlockInputs, y: Tensor) -> Arguments:
    """Return the twin of a step of a Mamba block that gives the gated channels y (B, D).

    Raises:
        RuntimeError: a tensor is not as the kernel reads it.
    """
    x, channels, states = inputs.x, len(inputs.A), inputs.A.shape[-1]
    selected = len(inputs.selection)
    sizes = {
        "x_stride": x.stride(0),
        "batch": len(x),
        "features": x.shape[1],
        "channels": channels,
        "steps": selected - 2 * states,
        "states": states,
        "taps": inputs.weight.shape[-1],
        "threads": threads_of(inputs.in_proj.numel()),
        "half": x.dtype == torch.bfloat16,
        "projected": 2 * channels,
        "selected": selected,
        "one": 1,
    }
    rows = x.dtype if x.dtype in ROWS else torch.float32  # which refuses any other type
    return BlockArguments.of({**inputs._asdict(), "y": y}, sizes, rows)


def block_step(inputs: BlockInputs) -> Tensor:
    """Mix one token, window and state in place; returns the gated channels (B, D)."""
    y = inputs.x.new_empty(len(inputs.x), len(inputs.A))
    native.call("block_step", block_arguments(inputs, y))
    return y


def groups_in_order(sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the members of `WindowGroup` of KV heads in one window, which serve so many query heads each."""
    firsts = list(accumulate(sizes, initial=0))
    return tuple((0, place, firsts[place], size, place, firsts[place]) for place, size in enumerate(sizes))


@cache
def window_groups(groups: tuple[tuple[int, ...], ...]) -> Array[WindowGroup]:
    """Return the twins of KV heads."""
    return (WindowGroup * len(groups))(*(WindowGroup(*group) for group in groups))


def _check(name: str, x: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    """Refuse what the kernel would not read as it lies: (B or 1, L, ...), whose last dimensions have no gaps."""
    dense = x.stride(-1) == 1 and (x.dim() < 4 or x.stride(2) == x.shape[3])
    if x.shape != shape or x.dtype != like.dtype or not x.is_cpu or not dense:
        raise RuntimeError(
            f"C++ kernels: {name} must be {shape} in {like.dtype}, but it is {tuple(x.shape)} in {x.dtype}"
        )


def window_slots(
    slots: Sequence[Tensor],
    windows: Sequence[tuple[int, int, int]],
    batch: int,
    whole: tuple[Tensor, Tensor] | None,
) -> Array[WindowSlots]:
    """Return the twins of the slots of windows; the arguments as of `WindowStepInputs`.

    Raises:
        RuntimeError: slots are not as the kernel reads them.
    """
    twins = []
    if whole is not None:
        keys, values = whole
        size = keys.itemsize
        if values.shape != keys.shape or len(keys) != batch or not (keys.is_contiguous() and values.is_contiguous()):
            raise RuntimeError(f"C++ kernels: keys {tuple(keys.shape)}, values {tuple(values.shape)}, {batch} rows")
        strides = (size * keys.stride(axis) for axis in (0, 2, 1))
        twins.append(WindowSlots(keys.data_ptr(), values.data_ptr(), *strides, keys.shape[2], ENDLESS, 8 * size))
    for held, (tokens, bits, width) in zip(slots, windows, strict=True):
        rows, places, count, numbers = held.shape
        if (rows, numbers * held.itemsize) != (batch, width) or not held.is_contiguous():
            raise RuntimeError(f"C++ kernels: slots {tuple(held.shape)} of {held.dtype}, not {width} bytes each")
        slot, start = count * width, held.data_ptr()
        twins.append(WindowSlots(start, start + width // 2, places * slot, slot, width, places, tokens, bits))
    return (WindowSlots * len(twins))(*twins)


def _call_windows(
    function: str, inputs: WindowStepInputs, y: Tensor, entries: Tensor | None = None, state: Structure | None = None
) -> int:
    """Call a function on the rows, and on the slots of windows or on a `state`."""
    (queries, keys, values, cos, sin), center, seen = inputs[:5], inputs.center, inputs.seen
    (batch, length, heads, dim), groups = queries.shape, keys.shape[2]
    _check("queries", queries, (batch, length, heads, dim), queries)
    _check("keys", keys, (batch, length, groups, dim), queries)
    _check("values", values, (batch, length, groups * dim), queries)
    turned, turns = 0, []
    for name, x in (("cos", cos), ("sin", sin)):
        if x is not None:
            turned = x.shape[2]
            _check(name, x, (batch if x.shape[0] > 1 else 1, length, turned), queries)
            if length > 1 and x.stride(1) != turned:
                raise RuntimeError(f"C++ kernels: {name} has gaps (strides {x.stride()})")
        turns.append((None, 0) if x is None else (x.data_ptr(), x.stride(0) if x.shape[0] > 1 else 0))
    if center is not None and (center.shape != (groups, dim) or center.dtype != queries.dtype):
        raise RuntimeError(f"C++ kernels: center must be {(groups, dim)}, but it is {tuple(center.shape)}")
    if seen is not None and (seen.shape != (batch, 1) or seen.dtype != torch.int64 or not seen.is_contiguous()):
        raise RuntimeError(f"C++ kernels: seen must be {(batch, 1)} in int64, but it is {tuple(seen.shape)}")
    if seen is None:
        for slots, (tokens, _, _) in zip(inputs.slots, inputs.windows, strict=True):
            if slots.shape[1] != min(length, inputs.sinks + tokens):
                raise RuntimeError(f"C++ kernels: {slots.shape[1]} slots for {length} tokens of a window of {tokens}")
    windows = window_slots(inputs.slots, inputs.windows, batch, inputs.whole)
    given = WindowStepArguments(
        *(queries.data_ptr(), keys.data_ptr(), values.data_ptr(), turns[0][0], turns[1][0]),
        *(None if x is None else x.data_ptr() for x in (center, y, entries, seen)),
        *(queries.stride(0), keys.stride(0), values.stride(0), turns[0][1], turns[1][1]),
        *(queries.stride(1), keys.stride(1), values.stride(1)),
        *(batch, length, heads, groups, dim, turned, inputs.sinks, 0),
        *(torch.get_num_threads(), queries.dtype == torch.bfloat16),
    )
    return native.call(function, given, windows if state is None else state, window_groups(inputs.groups))


def window_step(inputs: WindowStepInputs) -> Tensor | None:
    """Put one token into the windows, in place, and attend from it; returns outputs (B, 1, heads * D).

    None where a token has no slot: a call with more slots then does all again.

    Raises:
        RuntimeError: a tensor is not as the kernel reads it.
    """
    y = inputs.queries.new_empty(len(inputs.queries), 1, inputs.queries.shape[2:].numel())
    return None if _call_windows("window_step", inputs, y) else y


def window_begin(inputs: WindowStepInputs) -> tuple[Tensor, Tensor]:
    """Put an input's first tokens into the windows, in place.

    Returns:
        rotated queries (B, L, heads, D), and the keys and values as they are kept (B, L, KV heads, 2 D); both in the
        order of windows.

    Raises:
        RuntimeError: a tensor is not as the kernel reads it.
    """
    queries = inputs.queries.new_empty(inputs.queries.shape)
    entries = inputs.keys.new_empty(*inputs.keys.shape[:3], 2 * inputs.keys.shape[3])
    _call_windows("window_begin", inputs, queries, entries)
    return queries, entries


def retain_step(inputs: WindowStepInputs, decays: Tensor, state: Tensor) -> Tensor:
    """Advance the state of `Retention` by one token, in place.

    Args:
        inputs: the token's rows and the KV heads; no windows.
        decays: logarithms (B, KV heads * rates), in float32.
        state: (B, KV heads * rates, D, D + 1), in float32; the rows of a batch may have gaps.

    Returns:
        features (B, 1, (heads * rates + KV heads) * D): the means of every head and rate, then the values.

    Raises:
        RuntimeError: a tensor is not as the kernel reads it.
    """
    batch, _, heads, dim = inputs.queries.shape
    groups, states = inputs.keys.shape[2], decays.shape[1]
    shape = batch, states, dim, dim + 1
    if state.shape != shape or state.stride()[1:] != (dim * (dim + 1), dim + 1, 1) or states % groups:
        raise RuntimeError(f"C++ kernels: state must be {shape} without gaps in a row, but it is {tuple(state.shape)}")
    if not takes((), (decays,)) or state.dtype != torch.float32:
        raise RuntimeError(f"C++ kernels: decays and state must be float32, not {decays.dtype} and {state.dtype}")
    rates = states // groups
    y = inputs.queries.new_empty(batch, 1, (heads * rates + groups) * dim)
    retention = RetentionArguments(decays.data_ptr(), state.data_ptr(), state.stride(0), rates)
    _call_windows("retain_step", inputs, y, state=retention)
    return y
