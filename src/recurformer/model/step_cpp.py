"""One decoding step of a Mamba block on the CPU by the C++ kernels of `kernels/step.cpp`; no gradients.

Called without a torch operator around them, which would cost more than the step does.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from . import native
from .forced import allowed
from .native import structure
from .scan_cpp import pointers
from .scan_inputs import BlockInputs, StepInputs

StepArguments = structure(
    "StepArguments",
    "u delta A B C D z state y",
    "u_stride delta_stride z_stride B_stride C_stride batch channels states",
)
WindowArguments = structure("WindowArguments", "x weight bias window y", "x_stride batch channels taps")
ProductArguments = structure("ProductArguments", "x weight bias y", "x_stride batch features outputs", "threads")
BlockArguments = structure(
    "BlockArguments",
    "x in_proj weight bias selection selection_bias step_weight step_bias A D window state y",
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
    arguments = WindowArguments(
        **pointers(x=x, weight=weight, bias=bias, window=window, y=y),
        x_stride=x.stride(0),
        batch=len(x),
        channels=x.shape[1],
        taps=weight.shape[1],
    )
    native.call("convolution_step", arguments)
    return y


def state_step(inputs: StepInputs) -> Tensor:
    """Advance the state by one step, in place; returns y (B, D)."""
    y = inputs.u.new_empty(inputs.u.shape)
    strides = {f"{name}_stride": getattr(inputs, name).stride(0) for name in ("u", "delta", "z", "B", "C")}
    sizes = {"batch": len(y), "channels": y.shape[1], "states": inputs.A.shape[1]}
    native.call("scan_step", StepArguments(**pointers(**inputs._asdict(), y=y), **strides, **sizes))
    return y


def _threads(weight: Tensor) -> int:
    return 1 if weight.numel() < SHARED_FROM else torch.get_num_threads()


def takes(x: Tensor, *dense: Tensor | None) -> bool:
    """Return whether the kernels can multiply x (B, features), with `dense` as weights and states."""
    return len(x) <= MOST_ROWS and usable((x,), dense)


def block_step(inputs: BlockInputs) -> Tensor:
    """Mix one token, window and state in place; returns the gated channels (B, D)."""
    x, in_proj, weight, selection = inputs.x, inputs.in_proj, inputs.weight, inputs.selection
    (channels, states), steps = inputs.A.shape, len(selection) - 2 * inputs.A.shape[1]
    y = x.new_empty(len(x), channels)
    arguments = BlockArguments(
        **pointers(**inputs._asdict(), y=y),
        x_stride=x.stride(0),
        batch=len(x),
        features=x.shape[1],
        channels=channels,
        steps=steps,
        states=states,
        taps=weight.shape[-1],
        threads=_threads(in_proj),
    )
    native.call("block_step", arguments)
    return y


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + bias (B, outputs) for few rows x (B, features)."""
    y = x.new_empty(len(x), len(weight))
    sizes = {"x_stride": x.stride(0), "batch": len(x), "features": x.shape[1], "outputs": len(weight)}
    arguments = ProductArguments(**pointers(x=x, weight=weight, bias=bias, y=y), **sizes, threads=_threads(weight))
    native.call("product", arguments)
    return y
