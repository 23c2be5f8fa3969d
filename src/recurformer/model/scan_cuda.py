"""The selective scan on mamba-ssm's CUDA kernel, with the initial state that this kernel lacks.

The compiled extension module `selective_scan_cuda` is probed, not the package `mamba_ssm`: releases exist that import
without it, and the package imports much that a scan does not need. Where it is not installed, transformers' loader
fetches the same kernel from the model hub. The recurrence is linear in its initial state h0, so

    y_t += C_t (exp(A sum_{s<=t} delta_s) h0)        h_L += exp(A sum_{s<=L} delta_s) h0

corrects a kernel run from zero exactly (every exponent is negative, nothing overflows).
"""

import functools
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .scan_inputs import ScanInputs, empty_gradients, operator
from .scan_torch import blocked_scan, blocked_scan_backward

COMPILED = "selective_scan_cuda"
HUB_KERNEL, HUB_VERSION = "kernels-community/mamba-ssm", 4  # the ones of transformers' own Mamba
KERNEL_CHUNK = 2048  # the kernel reports its running state every so many steps
CORRECTION_SEGMENT = 256  # bounds the (B, D, N, segment) tensor of the correction


class Extension(NamedTuple):
    """The kernel's two passes, or why there are none.

    Attributes:
        remark: where they come from, or why they are missing.
        forward: in the convention of the compiled extension; None: missing.
        backward: likewise.
    """

    remark: str
    forward: Any = None
    backward: Any = None


def _compiled() -> Extension:
    try:
        module = import_module(COMPILED)
    except ImportError as error:
        if find_spec(COMPILED):
            return Extension(f"{COMPILED} cannot be loaded ({_line(error)})")
        if find_spec("mamba_ssm"):
            return Extension(f"mamba-ssm is installed without {COMPILED}: build it with MAMBA_KEEP_CUDA_BUILD=TRUE")
        return Extension("mamba-ssm is not installed")
    return Extension(f"compiled, {COMPILED}", module.fwd, module.bwd)


def _from_hub() -> Extension:
    from transformers.integrations import hub_kernels

    if not hub_kernels.is_kernels_available():
        return Extension("the hub's needs `pip install 'transformers[kernels]'`")
    if not hub_kernels._kernels_enabled:
        return Extension("USE_HUB_KERNELS forbids the hub's")
    try:
        operators = hub_kernels.get_kernel(HUB_KERNEL, version=HUB_VERSION)._ops.ops
        passes = operators.selective_scan_fwd, operators.selective_scan_bwd
    except Exception as error:  # the loader, the hub's client and torch each raise their own kinds
        return Extension(f"{HUB_KERNEL} cannot be loaded ({_line(error)})")
    return Extension(f"{HUB_KERNEL} of the hub, version {HUB_VERSION}", *passes)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


@functools.cache
def load_extension() -> Extension:
    """Load the compiled extension or, on a machine with a GPU, the hub's; a failure is a remark, never raised."""
    compiled = _compiled()
    if not torch.cuda.is_available():
        return compiled._replace(remark=f"{compiled.remark}; there is no CUDA device")
    if compiled.forward is not None:
        return compiled
    hub = _from_hub()
    return hub if hub.forward is not None else Extension(f"{compiled.remark}; {hub.remark}")


@torch.compiler.assume_constant_result  # a graph need not look into the loading of an extension
def _refuses_all() -> str | None:
    """Return why nothing can run here, or None: there is no kernel."""
    extension = load_extension()
    return None if extension.forward is not None else f"no kernel of mamba-ssm: {extension.remark}"


TENSORS = (
    "Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias,"
    " bool delta_softplus"
)


def _kernel_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus):
    """Return y (B, D, L), the last state (B, D, N), the kernel's chunk states and its output before the gate."""
    out, chunks, *gated = load_extension().forward(
        u, delta, A, B.unsqueeze(1), C.unsqueeze(1), D, z, delta_bias, delta_softplus
    )
    last_state = chunks[:, :, -1, 1::2].clone()
    return (gated[0], last_state, chunks, out) if gated else (out, last_state, chunks, u.new_empty(0))


def _empty_outputs(u, delta, A, B, C, D, z, delta_bias, delta_softplus):
    batch, channels, length = u.shape
    count, width = (length + KERNEL_CHUNK - 1) // KERNEL_CHUNK, A.shape[1]
    last_state = u.new_empty(batch, channels, width, dtype=torch.float32)
    chunks = u.new_empty(batch, channels, count, 2 * width, dtype=torch.float32)
    y = u.new_empty(u.shape)
    return y, last_state, chunks, u.new_empty(0) if z is None else y.clone()


def _kernel_scan_backward(grad_y, chunks, out, u, delta, A, B, C, D, z, delta_bias, delta_softplus):
    """Return the gradients of u, delta, A, B, C, D, z, delta_bias; an absent input's gradient is empty."""
    du, ddelta, dA, dB, dC, dD, dbias, *dz = load_extension().backward(
        u,
        delta,
        A,
        B.unsqueeze(1),
        C.unsqueeze(1),
        D,
        z,
        delta_bias,
        grad_y.contiguous(),
        chunks,
        None if z is None else out,
        None,
        delta_softplus,
        False,
    )
    grads = [du, ddelta, dA, dB.squeeze(1), dC.squeeze(1), dD, dz[0] if dz else None, dbias]
    inputs = (u, delta, A, B, C, D, z, delta_bias)
    return [u.new_empty(0) if x is None else grad.to(x.dtype) for x, grad in zip(inputs, grads, strict=True)]


kernel_scan = operator(
    __name__, "kernel_scan", _kernel_scan, _empty_outputs, f"({TENSORS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
kernel_scan_backward = operator(
    __name__,
    "kernel_scan_backward",
    _kernel_scan_backward,
    empty_gradients,
    f"(Tensor grad_y, Tensor chunks, Tensor out, {TENSORS}) -> Tensor[]",
)


def _save_inputs(ctx, inputs, output):
    *tensors, ctx.delta_softplus = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output[2:])


def _backward(ctx, grad_y, grad_last, *_):
    *tensors, chunks, out = ctx.saved_tensors
    grads: list[Tensor | None] = [None] * len(tensors)
    if grad_y is not None:
        grads = kernel_scan_backward(grad_y, chunks, out, *tensors, ctx.delta_softplus)
    if grad_last is not None:  # the kernel has no gradient of the last state: the torch scan adds it
        *_, starts = blocked_scan(*tensors, None, ctx.delta_softplus)
        *extra, _ = blocked_scan_backward(None, grad_last, starts, *tensors, None, ctx.delta_softplus)
        grads = [more if grad is None else grad + more for grad, more in zip(grads, extra, strict=True)]
    return *(None if x is None else grad for x, grad in zip(tensors, grads, strict=True)), None


kernel_scan.register_autograd(_backward, setup_context=_save_inputs)


def _from_initial_state(
    delta: Tensor, A: Tensor, C: Tensor, delta_bias: Tensor | None, delta_softplus: bool, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the parts of the outputs (B, D, L) and of the last state (B, D, N) that `state` adds."""
    delta = delta.float() if delta_bias is None else delta.float() + delta_bias.unsqueeze(-1)
    elapsed = (F.softplus(delta) if delta_softplus else delta).cumsum(-1)  # (B, D, L)
    added = []
    for time, read in zip(elapsed.split(CORRECTION_SEGMENT, -1), C.float().split(CORRECTION_SEGMENT, -1), strict=True):
        decayed = torch.exp(A.unsqueeze(-1) * time.unsqueeze(2)) * state.unsqueeze(-1)  # (B, D, N, K)
        added.append((decayed * read.unsqueeze(1)).sum(2))
    return torch.cat(added, -1), torch.exp(A * elapsed[..., -1:]) * state


def refuses(u: Tensor, A: Tensor, delta_softplus: bool) -> str | None:
    """Return why the kernel cannot take these inputs, or None; only a CUDA tensor has it looked for."""
    return _refuses_all() if u.is_cuda else f"mamba-ssm's kernel takes CUDA tensors, the input is on {u.device}"


def scan_mamba_ssm(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the CUDA kernel; see `recurformer.model.scan.selective_scan`."""
    u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus = inputs
    dtype = u.dtype
    delta, B, C = (x.to(dtype) for x in (delta, B, C))
    u, delta, B, C = (x if x.stride(-1) == 1 else x.contiguous() for x in (u, delta, B, C))
    A = A.float().contiguous()
    D, delta_bias = (None if x is None else x.float().contiguous() for x in (D, delta_bias))
    if z is not None:
        z = z.to(dtype) if z.stride(-1) == 1 else z.to(dtype).contiguous()
    if initial_state is None:
        y, last_state, *_ = kernel_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
        return y, last_state
    y, last_state, *_ = kernel_scan(u, delta, A, B, C, D, None, delta_bias, delta_softplus)
    added, kept = _from_initial_state(delta, A, C, delta_bias, delta_softplus, initial_state.float())
    y = y.float() + added
    return (y if z is None else y * F.silu(z.float())).to(dtype), last_state + kept
