"""One decoding step of a Mamba block on the CPU by the C++ kernels of `kernels/step.cpp`; no gradients.

Called without a torch operator around them, which would cost more than the step does.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from . import native
from .forced import allowed
from .native import structure
from .scan_inputs import BlockInputs, StepInputs

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
ProductArguments = structure(
    "ProductArguments",
    {"x": "batch features", "weight": "outputs features", "bias": "?outputs", "y": "batch outputs"},
    "x_stride batch features outputs",
    "threads",
)
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
SHARED_FROM = 2**15  # weights of a matrix; fewer are not worth waking a second thread
MOST_ROWS = 8  # of a batch; more are quicker by torch's matrix products


def usable(rows: Iterable[Tensor | None], dense: Iterable[Tensor | None]) -> bool:
    """Return whether the kernels can take `rows` (B, X), parts of wider ones too, and `dense` tensors."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not allowed("cpp") or native.missing() is not None:
        return False
    given_rows, given_dense = ([x for x in tensors if x is not None] for tensors in (rows, dense))
    ordinary = all(x.device.type == "cpu" and x.dtype == torch.float32 for x in (*given_rows, *given_dense))
    return ordinary and all(x.stride(-1) == 1 for x in given_rows) and all(x.is_contiguous() for x in given_dense)


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


def takes(x: Tensor, *dense: Tensor | None) -> bool:
    """Return whether the kernels can multiply x (B, features), with `dense` as weights and states."""
    return len(x) <= MOST_ROWS and usable((x,), dense)


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


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + bias (B, outputs) for few rows x (B, features)."""
    y = x.new_empty(len(x), len(weight))
    sizes = {"x_stride": x.stride(0), "batch": len(x), "features": x.shape[1], "outputs": len(weight)}
    tensors = {"x": x, "weight": weight, "bias": bias, "y": y}
    native.call("product", ProductArguments.of(tensors, sizes | {"threads": _threads(weight)}))
    return y
