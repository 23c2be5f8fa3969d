"""The selective scan on the CPU by the C++ kernels of `kernels/scan_*.cpp`, as a torch operator with its own backward.

The operator takes float32 rows (B, L, X), also strided ones out of a larger projection, without copying them.
Views and casts under ordinary autograd lead there from mamba_ssm's (B, X, L) and from other precisions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import native
from .native import Arguments, structure
from .scan_inputs import NAMES, ScanInputs, scan_operator

STATES = (4, 8, 16, 32, 64)  # the widths N that the kernel is compiled for
UNKNOWN_WIDTH = 1  # exit status of the kernels; 2: A is not negative
PARALLEL_FROM = 2**18  # state updates; fewer are not worth waking a second thread
ROWS = ("u", "delta", "B", "C", "z")
SUMMED = ("A", "B", "C", "D", "delta_bias")  # gradients that the kernel adds to

ROW, STATE = "batch length channels", "batch states channels"
SHAPES = {
    "u": ROW,
    "delta": ROW,
    "A": "states channels",
    "B": "batch length states",
    "C": "batch length states",
    "D": "?channels",
    "z": f"?{ROW}",
    "delta_bias": "?channels",
    "initial_state": f"?{STATE}",
}
STARTS = "batch tiles states channels"

ScanArguments = structure(
    "ScanArguments", SHAPES, "u_stride delta_stride z_stride B_stride C_stride batch length channels", "states threads"
)
ScanOutputs = structure("ScanOutputs", {"y": ROW, "last_state": STATE, "starts": f"?{STARTS}"})
ScanGradients = structure("ScanGradients", {"grad_y": f"?{ROW}", "grad_last": f"?{STATE}", "starts": STARTS, **SHAPES})


def even_rows(x: Tensor) -> tuple[Tensor, int]:
    """Return (B, L, X) with contiguous X and evenly spaced rows, copied only if it must be, and the rows' spacing."""
    if x.dim() != 3:
        raise RuntimeError(f"C++ kernels: rows must be (B, L, X), but their shape is {tuple(x.shape)}")
    batch, length, width = x.shape
    if x.stride(2) == 1 and (batch == 1 or x.stride(0) == length * x.stride(1)):
        return x, x.stride(1)
    return x.contiguous(), width


def _run(function: str, inputs: Sequence[Tensor | None], outputs: type[Arguments], results: Any) -> None:
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


def _scan(*inputs):
    """Return y (B, L, D), the last state (B, N, D) and, for a backward pass, the state before every tile of steps."""
    y, last_state, starts = _empty_outputs(*inputs)
    *tensors, keep_starts = inputs
    results = {"y": y, "last_state": last_state, "starts": starts if keep_starts else None}
    _run("scan_forward", tensors, ScanOutputs, results)
    return y, last_state, starts


def _empty_outputs(*inputs):
    u, _, A, *_, keep_starts = inputs
    (batch, length, channels), states = u.shape, len(A)
    tiles = -(-length // native.TILE_STEPS) if keep_starts else 0
    shapes = (batch, length, channels), (batch, states, channels), (batch, tiles, states, channels)
    return tuple(u.new_empty(shape) for shape in shapes)


def _scan_backward(grad_y, grad_last, starts, *inputs):
    """Return the gradients of the inputs; empty for an absent one."""
    tensors = inputs[:-1]
    grads = dict(zip(NAMES, _empty_gradients(grad_y, grad_last, starts, *inputs), strict=True))
    for name in SUMMED:
        grads[name].zero_()
    results = {"grad_y": grad_y, "grad_last": grad_last}
    results = {name: None if x is None else x.contiguous() for name, x in results.items()} | {"starts": starts}
    results |= {name: None if x is None else grads[name] for name, x in zip(NAMES, tensors, strict=True)}
    _run("scan_backward", tensors, ScanGradients, results)
    return list(grads.values())


def _empty_gradients(grad_y, grad_last, starts, *inputs):
    return [starts.new_empty(0 if x is None else x.shape) for x in inputs[:-1]]


scan_rows, scan_rows_backward = scan_operator(
    __name__, "scan_rows", (_scan, _scan_backward), (_empty_outputs, _empty_gradients), flag="keep_starts", device="cpu"
)


def refuses(u: Tensor, A: Tensor, delta_softplus: bool) -> str | None:
    """Return why the kernel cannot take these inputs, or None."""
    if u.device.type != "cpu" or u.dtype == torch.float64:
        return f"the C++ kernel takes CPU tensors up to float32, not {u.dtype} on {u.device}"
    if A.shape[1] not in STATES or not delta_softplus:
        return f"the C++ kernel takes N in {STATES} with softplus, not N={A.shape[1]}, delta_softplus={delta_softplus}"
    return native.missing()


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
