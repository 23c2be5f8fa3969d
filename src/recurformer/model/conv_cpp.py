"""The causal depthwise convolution with SiLU on the CPU by the C++ kernel of `kernels/convolution.cpp`.

An operator on float32 rows (B, L, D), also strided ones out of a larger projection, with its own backward.
"""

from ctypes import Structure

import torch
from torch import Tensor

from . import native
from .forced import allowed
from .native import structure
from .scan_cpp import PARALLEL_FROM, even_rows
from .scan_inputs import operator_name

TAPS = (2, 3, 4)  # the widths that the kernel is compiled for
TENSORS = "Tensor x, Tensor weight, Tensor? bias, Tensor? history"

SHAPES = {
    "x": "batch length channels",
    "weight": "channels taps",
    "bias": "?channels",
    "history": "?batch channels before",
}

ConvolutionArguments = structure("ConvolutionArguments", SHAPES, "x_stride batch length channels", "taps threads")
ConvolutionGradients = structure("ConvolutionGradients", {"grad_y": SHAPES["x"], **SHAPES})


def _prepare(
    x: Tensor, weight: Tensor, bias: Tensor | None, history: Tensor | None
) -> tuple[dict[str, Tensor | None], dict[str, int]]:
    """Return the tensors as the kernel reads them, and the sizes."""
    (x, stride), weight = even_rows(x), weight.contiguous()
    history = None if history is None else history.contiguous()
    (batch, length, channels), taps = x.shape, weight.shape[1]
    sizes = {"batch": batch, "length": length, "channels": channels, "taps": taps, "before": taps - 1}
    threads = 1 if x.numel() * taps < PARALLEL_FROM else torch.get_num_threads()
    tensors = {"x": x, "weight": weight, "bias": bias, "history": history}
    return tensors, sizes | {"x_stride": stride, "threads": threads}


def _run(function: str, tensors: dict[str, Tensor | None], sizes: dict[str, int], output: Structure | int) -> None:
    if native.call(function, ConvolutionArguments.of(tensors, sizes), output):
        raise ValueError(f"the C++ convolution takes {TAPS} taps, not {sizes['taps']}")


def _convolve(*inputs):
    y = _empty_output(*inputs)
    _run("convolution_forward", *_prepare(*inputs), y.data_ptr())
    return y


def _empty_output(x, weight, bias, history):
    return x.new_empty(x.shape)


def _convolve_backward(grad_y, *inputs):
    grad_y = grad_y.contiguous()
    grads = dict(zip(SHAPES, _empty_gradients(grad_y, *inputs), strict=True))
    for name in ("weight", "bias"):  # the kernel adds to sums over rows
        grads[name].zero_()
    tensors, sizes = _prepare(*inputs)
    wanted = {name: None if tensors[name] is None else grad for name, grad in grads.items()}
    _run("convolution_backward", tensors, sizes, ConvolutionGradients.of({"grad_y": grad_y, **wanted}, sizes))
    return list(grads.values())


def _empty_gradients(grad_y, *inputs):
    return [grad_y.new_empty(0 if x is None else x.shape) for x in inputs]


convolve_rows = torch.library.custom_op(
    operator_name(__name__, "convolve_rows"), _convolve, mutates_args=(), device_types="cpu",
    schema=f"({TENSORS}) -> Tensor",
)  # fmt: skip
convolve_rows_backward = torch.library.custom_op(
    operator_name(__name__, "convolve_rows_backward"), _convolve_backward, mutates_args=(), device_types="cpu",
    schema=f"(Tensor grad_y, {TENSORS}) -> Tensor[]",
)  # fmt: skip
convolve_rows.register_fake(_empty_output)
convolve_rows_backward.register_fake(_empty_gradients)


def _backward(ctx, grad_y):
    inputs = ctx.saved_tensors  # read once: activation checkpointing recomputes at each reading
    grads = convolve_rows_backward(grad_y, *inputs)
    return tuple(None if x is None else grad for x, grad in zip(inputs, grads, strict=True))


convolve_rows.register_autograd(_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def usable(x: Tensor, weight: Tensor, *others: Tensor | None) -> bool:
    """Return whether the kernel can take these tensors: float32 on the CPU, with a number of taps that it knows."""
    tensors = (x, weight, *(other for other in others if other is not None))
    if not allowed("cpp") or weight.shape[1] not in TAPS:
        return False
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in tensors) and native.missing() is None
