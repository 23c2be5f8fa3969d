"""The C++ kernels of `kernels/` as functions on tensors: the selective scan and the causal convolution.

Scan and convolution are torch operators with their own backward. They take float32 rows (B, L, X), also strided ones
out of a larger projection, without copying them. Views and casts under ordinary autograd lead there from mamba_ssm's
(B, X, L) and from other precisions.
"""

from collections.abc import Sequence
from ctypes import Structure
from typing import Any

import torch
from torch import Tensor

from . import native
from .native import Arguments, structure
from .scan_inputs import ENVIRONMENT_VARIABLE, NAMES, ScanInputs, empty_gradients, forced, operator, scan_operator

STATES = (4, 8, 16, 32, 64)  # the widths N that the scan is compiled for
TAPS = (2, 3, 4)  # the widths that the convolution is compiled for
UNKNOWN_WIDTH = 1  # exit status of the scan; 2: A is not negative
PARALLEL_FROM = 2**18  # state updates or taps; fewer are not worth waking a second thread


ROWS = ("u", "delta", "B", "C", "z")
SUMMED = ("A", "B", "C", "D", "delta_bias")  # gradients that the kernel adds to

LONG_ROW, STATE = "batch length channels", "batch states channels"
SCAN_SHAPES = {
    "u": LONG_ROW,
    "delta": LONG_ROW,
    "A": "states channels",
    "B": "batch length states",
    "C": "batch length states",
    "D": "?channels",
    "z": f"?{LONG_ROW}",
    "delta_bias": "?channels",
    "initial_state": f"?{STATE}",
}
STARTS = "batch tiles states channels"

ScanArguments = structure(
    "ScanArguments",
    SCAN_SHAPES,
    "u_stride delta_stride z_stride B_stride C_stride batch length channels",
    "states threads",
)
ScanOutputs = structure("ScanOutputs", {"y": LONG_ROW, "last_state": STATE, "starts": f"?{STARTS}"})
ScanGradients = structure(
    "ScanGradients", {"grad_y": f"?{LONG_ROW}", "grad_last": f"?{STATE}", "starts": STARTS, **SCAN_SHAPES}
)


def even_rows(x: Tensor) -> tuple[Tensor, int]:
    """Return (B, L, X) with contiguous X and evenly spaced rows, copied only if it must be, and the rows' spacing."""
    if x.dim() != 3:
        raise RuntimeError(f"C++ kernels: rows must be (B, L, X), but their shape is {tuple(x.shape)}")
    batch, length, width = x.shape
    if x.stride(2) == 1 and (batch == 1 or x.stride(0) == length * x.stride(1)):
        return x, x.stride(1)
    return x.contiguous(), width


def _run_scan(function: str, inputs: Sequence[Tensor | None], outputs: type[Arguments], results: Any) -> None:
    """Call the kernel; copies of the inputs, where it needs any, live until it has returned."""
    read: dict[str, Tensor | None] = {}
    sizes = {"z_stride": 0}
    for name, x in zip(NAMES, inputs, strict=True):
        read[name] = None if x is None or name in ROWS else x.contiguous()
        if x is not None and name in ROWS:
            read[name], sizes[f"{name}_stride"] = even_rows(x)
    (batch, length, channels), states = read["u"].shape, len(read["A"])  # type: ignore[union-attr, arg-type]
    threads = 1 if batch * length * channels * states < PARALLEL_FROM else torch.get_num_threads()
    sizes |= {"batch": batch, "length": length, "channels": channels, "states": states, "threads": threads}
    sizes["tiles"] = -(-length // native.TILE_STEPS)
    status = native.call(function, ScanArguments.of(read, sizes), outputs.of(results, sizes))
    if status == UNKNOWN_WIDTH:
        raise ValueError(f"selective_scan: the C++ kernel takes N in {STATES}, not {states}")
    if status:
        raise ValueError("selective_scan: A must be negative everywhere, it is the exponent of a decay")


def _scan_forward(*inputs):
    """Return y (B, L, D), the last state (B, N, D) and, for a backward pass, the state before every tile of steps."""
    y, last_state, starts = _empty_scan(*inputs)
    *tensors, keep_starts = inputs
    results = {"y": y, "last_state": last_state, "starts": starts if keep_starts else None}
    _run_scan("scan_forward", tensors, ScanOutputs, results)
    return y, last_state, starts


def _empty_scan(*inputs):
    u, _, A, *_, keep_starts = inputs
    (batch, length, channels), states = u.shape, len(A)
    tiles = -(-length // native.TILE_STEPS) if keep_starts else 0
    shapes = (batch, length, channels), (batch, states, channels), (batch, tiles, states, channels)
    return tuple(u.new_empty(shape) for shape in shapes)


def _scan_backward(grad_y, grad_last, starts, *inputs):
    """Return the gradients of the inputs; empty for an absent one."""
    tensors = inputs[:-1]
    grads = dict(zip(NAMES, empty_gradients(grad_y, grad_last, starts, *inputs), strict=True))
    for name in SUMMED:
        grads[name].zero_()
    results = {"grad_y": grad_y, "grad_last": grad_last}
    results = {name: None if x is None else x.contiguous() for name, x in results.items()} | {"starts": starts}
    results |= {name: None if x is None else grads[name] for name, x in zip(NAMES, tensors, strict=True)}
    _run_scan("scan_backward", tensors, ScanGradients, results)
    return list(grads.values())


scan_rows, scan_rows_backward = scan_operator(
    __name__, "scan_rows", (_scan_forward, _scan_backward), (_empty_scan, empty_gradients), device="cpu"
)


def refuses_scan(u: Tensor, A: Tensor, delta_softplus: bool) -> str | None:
    """Return why the scan cannot take these inputs, or None."""
    if u.device.type != "cpu" or u.dtype == torch.float64:
        return f"the C++ kernel takes CPU tensors up to float32, not {u.dtype} on {u.device}"
    if A.shape[1] not in STATES or not delta_softplus:
        return f"the C++ kernel takes N in {STATES} with softplus, not N={A.shape[1]}, delta_softplus={delta_softplus}"
    return native.refuses()


def scan_cpp(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the C++ kernel; see `recurformer.model.scan.selective_scan`."""
    turned = {"A": (0, 1), "initial_state": (1, 2), **dict.fromkeys(ROWS, (1, 2))}
    tensors = [
        None if x is None else (x.transpose(*turned[name]) if name in turned else x).float()
        for name, x in zip(NAMES, inputs[:-1], strict=True)
    ]
    keep_starts = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    y, last_state, _ = scan_rows(*tensors, keep_starts)
    return y.to(inputs.u.dtype).transpose(1, 2), last_state.transpose(1, 2)


CONVOLUTION_TENSORS = "Tensor x, Tensor weight, Tensor? bias, Tensor? history"

CONVOLUTION_SHAPES = {
    "x": "batch length channels",
    "weight": "channels taps",
    "bias": "?channels",
    "history": "?batch channels before",
}

ConvolutionArguments = structure(
    "ConvolutionArguments", CONVOLUTION_SHAPES, "x_stride batch length channels", "taps threads"
)
ConvolutionGradients = structure("ConvolutionGradients", {"grad_y": CONVOLUTION_SHAPES["x"], **CONVOLUTION_SHAPES})


def _convolution_inputs(
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


def _run_convolution(
    function: str, tensors: dict[str, Tensor | None], sizes: dict[str, int], output: Structure | int
) -> None:
    if native.call(function, ConvolutionArguments.of(tensors, sizes), output):
        raise ValueError(f"the C++ convolution takes {TAPS} taps, not {sizes['taps']}")


def _convolve(*inputs):
    y = _empty_convolution(*inputs)
    _run_convolution("convolution_forward", *_convolution_inputs(*inputs), y.data_ptr())
    return y


def _empty_convolution(x, weight, bias, history):
    return x.new_empty(x.shape)


def _convolve_backward(grad_y, *inputs):
    grad_y = grad_y.contiguous()
    grads = dict(zip(CONVOLUTION_SHAPES, _empty_convolution_gradients(grad_y, *inputs), strict=True))
    for name in ("weight", "bias"):  # the kernel adds to sums over rows
        grads[name].zero_()
    tensors, sizes = _convolution_inputs(*inputs)
    wanted = {name: None if tensors[name] is None else grad for name, grad in grads.items()}
    _run_convolution(
        "convolution_backward", tensors, sizes, ConvolutionGradients.of({"grad_y": grad_y, **wanted}, sizes)
    )
    return list(grads.values())


def _empty_convolution_gradients(grad_y, *inputs):
    return [grad_y.new_empty(0 if x is None else x.shape) for x in inputs]


convolve_rows = operator(
    __name__, "convolve_rows", _convolve, _empty_convolution, f"({CONVOLUTION_TENSORS}) -> Tensor", "cpu"
)
convolve_rows_backward = operator(
    __name__,
    "convolve_rows_backward",
    _convolve_backward,
    _empty_convolution_gradients,
    f"(Tensor grad_y, {CONVOLUTION_TENSORS}) -> Tensor[]",
    "cpu",
)


def _differentiate_convolution(ctx, grad_y):
    inputs = ctx.saved_tensors  # read once: activation checkpointing recomputes at each reading
    grads = convolve_rows_backward(grad_y, *inputs)
    return tuple(None if x is None else grad for x, grad in zip(inputs, grads, strict=True))


convolve_rows.register_autograd(
    _differentiate_convolution, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


def refuses_convolution(x: Tensor, weight: Tensor, *others: Tensor | None) -> str | None:
    """Return why the convolution cannot take these tensors, or None."""
    name, taps = forced(), weight.shape[1]
    if taps not in TAPS:
        return f"the C++ convolution takes {TAPS} taps, not {taps}"
    if name not in (None, "cpp"):
        return f"{ENVIRONMENT_VARIABLE} is {name}"
    for tensor in (x, weight, *others):
        if tensor is not None and (tensor.dtype != torch.float32 or tensor.device.type != "cpu"):
            return f"the C++ kernels take {torch.float32} on the CPU, not {tensor.dtype} on {tensor.device}"
    return native.refuses()
