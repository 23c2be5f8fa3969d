"""The C++ kernels of one decoding step as functions on tensors, and of other work that has no gradients.

They have no torch operator around them, which would cost more than the step does.
"""

from collections.abc import Iterable, Sequence
from ctypes import Array, Structure, c_int64, c_void_p
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import native
from .cpp import PARALLEL_FROM, refuses
from .native import structure

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
    """One step of a Mamba block, from its input to the gated channels; all weights without gaps.

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
    A: Tensor
    D: Tensor
    window: Tensor
    state: Tensor


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
PRODUCT = {"x": "batch features", "weight": "outputs features", "bias": "?outputs", "y": "batch outputs"}
PRODUCTS = {
    torch.float32: (
        "product",
        structure("ProductArguments", PRODUCT, "x_stride batch features outputs", "threads"),
    ),
    torch.bfloat16: (
        "half_product",
        structure(
            "HalfProductArguments",
            {name: f"{shape} bfloat16" for name, shape in PRODUCT.items()},
            "x_stride batch features outputs",
            "threads",
        ),
    ),
}
"""Function and arguments, by type; sums are of float32."""
BlockArguments = structure(
    "BlockArguments",
    {
        "x": "batch features",
        "in_proj": "projected features",
        "weight": "channels one taps",
        "bias": "channels",
        "selection": "selected channels",
        "selection_bias": "?selected",
        "step_weight": "?channels steps",
        "step_bias": "?channels",
        "A": "channels states",
        "D": "channels",
        "window": f"{ROW} taps",
        "state": f"{ROW} states",
        "y": ROW,
    },
    "x_stride batch features channels steps states taps",
    "threads",
)


class WindowStepInputs(NamedTuple):
    """One step of a layer's windows: queries (B, heads, D), keys and values (B, KV heads, D), nothing rotated yet.

    `cos` and `sin` are (B or 1, rotated features), or None in a layer without positions. `center` (KV heads, D) is
    taken from the keys where it is there. `seen` (B, 1), the number of tokens before this one, is updated; so are the
    `slots` of each window (B, held, its KV heads, width), which has a slot for the new token. `windows` names of each
    the tokens of its ring, its bits and its width; `groups` of each KV head its window, its place in there, and its
    first query head and their number.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    cos: Tensor | None
    sin: Tensor | None
    center: Tensor | None
    seen: Tensor
    slots: Sequence[Tensor]
    windows: Sequence[tuple[int, int, int]]
    groups: tuple[tuple[int, int, int, int], ...]
    sinks: int


class WindowSlots(Structure):
    """The ctypes twin of a window's slots."""

    _fields_ = [("slots", c_void_p), *((name, c_int64) for name in ("held", "tokens", "groups", "bits"))]


class WindowGroup(Structure):
    """The ctypes twin of a KV head."""

    _fields_ = [(name, c_int64) for name in ("window", "place", "first_query", "queries")]


WindowStepArguments = structure(
    "WindowStepArguments",
    {
        "queries": "batch all_queries",
        "keys": "batch all_keys",
        "values": "batch all_keys",
        "cos": "?batch turned",
        "sin": "?batch turned",
        "center": "?groups dim",
        "y": "batch all_queries",
        "seen": "batch one int64",
    },
    "queries_stride keys_stride values_stride cos_stride sin_stride batch heads groups dim turned sinks",
    "threads",
)


HadamardArguments = structure("HadamardArguments", {"x": "rows dim", "y": "rows dim"}, "x_stride rows dim", "threads")


def hadamard(x: Tensor) -> Tensor:
    """Return x (..., D) times Hadamard's orthonormal matrix, by blocks of the largest power of two that divides D."""
    rows = x.reshape(-1, x.shape[-1])
    y = rows.new_empty(rows.shape)
    threads = 1 if x.numel() < PARALLEL_FROM else torch.get_num_threads()
    sizes = {"x_stride": rows.stride(0), "rows": len(rows), "dim": x.shape[-1], "threads": threads}
    native.call("hadamard_rows", HadamardArguments.of({"x": rows, "y": y}, sizes))
    return y.view(x.shape)


def refuses_step(
    rows: Iterable[Tensor | None],
    dense: Iterable[Tensor | None],
    most_rows: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> str | None:
    """Return why a step cannot take `rows` (B, X), parts of wider ones too, and `dense` tensors, or None."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return "a step by the C++ kernels has no gradients and cannot be compiled"
    given_rows, given_dense = ([x for x in tensors if x is not None] for tensors in (rows, dense))
    if most_rows is not None and given_rows[0].shape[0] > most_rows:
        return f"a matrix product of more than {most_rows} rows is quicker in torch"
    reason = refuses(*given_rows, *given_dense, dtype=dtype)
    if reason is not None:
        return reason
    gaps = any(x.stride(-1) != 1 for x in given_rows) or any(not x.is_contiguous() for x in given_dense)
    return "the C++ kernels read tensors without gaps" if gaps else None


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


def _threads(weight: Tensor) -> int:
    return 1 if weight.numel() < SHARED_FROM else torch.get_num_threads()


def block_step(inputs: BlockInputs) -> Tensor:
    """Mix one token, window and state in place; returns the gated channels (B, D)."""
    x, channels, states = inputs.x, len(inputs.A), inputs.A.shape[-1]
    selected, y = len(inputs.selection), x.new_empty(len(x), channels)
    sizes = {
        "x_stride": x.stride(0),
        "batch": len(x),
        "features": x.shape[1],
        "channels": channels,
        "steps": selected - 2 * states,
        "states": states,
        "taps": inputs.weight.shape[-1],
        "threads": _threads(inputs.in_proj),
        "projected": 2 * channels,
        "selected": selected,
        "one": 1,
    }
    native.call("block_step", BlockArguments.of({**inputs._asdict(), "y": y}, sizes))
    return y


@cache
def _window_groups(groups: tuple[tuple[int, int, int, int], ...]) -> Array[WindowGroup]:
    return (WindowGroup * len(groups))(*(WindowGroup(*group) for group in groups))


def window_step(inputs: WindowStepInputs) -> Tensor:
    """Put one token into the windows, in place, and attend from it; returns outputs (B, heads * D).

    Raises:
        RuntimeError: a token has no slot, or the slots are not as the kernel reads them.
    """
    (batch, heads, dim), groups = inputs.queries.shape, inputs.keys.shape[1]
    rows = {name: getattr(inputs, name).flatten(1) for name in ("queries", "keys", "values")}
    turns = {name: None if (x := getattr(inputs, name)) is None else x.expand(batch, -1) for name in ("cos", "sin")}
    y = inputs.queries.new_empty(batch, heads * dim)
    windows = (WindowSlots * len(inputs.slots))()
    for window, slots, (tokens, bits, width) in zip(windows, inputs.slots, inputs.windows, strict=True):
        held, count = slots.shape[1:3]
        if (len(slots), slots.shape[3] * slots.itemsize) != (batch, width) or not slots.is_contiguous():
            raise RuntimeError(f"C++ kernels: slots {tuple(slots.shape)} of {slots.dtype}, not {width} bytes each")
        window.slots, window.held, window.groups, window.tokens, window.bits = (
            slots.data_ptr(),
            held,
            count,
            tokens,
            bits,
        )
    sizes = {f"{name}_stride": 0 if x is None else x.stride(0) for name, x in (rows | turns).items()}
    sizes |= {"batch": batch, "heads": heads, "groups": groups, "dim": dim, "sinks": inputs.sinks, "one": 1}
    sizes |= {"turned": 0 if turns["cos"] is None else turns["cos"].shape[1], "threads": torch.get_num_threads()}
    sizes |= {"all_queries": heads * dim, "all_keys": groups * dim}
    tensors = {**rows, **turns, "center": inputs.center, "y": y, "seen": inputs.seen}
    status = native.call("window_step", WindowStepArguments.of(tensors, sizes), windows, _window_groups(inputs.groups))
    if status:
        raise RuntimeError(f"C++ kernels: a token after {inputs.seen.max()} others has no slot")
    return y


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + bias (B, outputs) for few rows x (B, features), all of a type in `PRODUCTS`."""
    function, arguments = PRODUCTS[torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32]
    (rows, features), outputs = x.shape, weight.shape[0]
    y = x.new_empty(rows, outputs)
    sizes = {"x_stride": x.stride(0), "batch": rows, "features": features, "outputs": outputs}
    tensors = {"x": x, "weight": weight, "bias": bias, "y": y}
    native.call(function, arguments.of(tensors, sizes | {"threads": _threads(weight)}))
    return y
