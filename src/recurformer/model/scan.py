"""The selective scan of Mamba (S6), in mamba_ssm's signature and layout, with an initial state, on several backends.

    h_t = exp(delta_t A) h_{t-1} + delta_t B_t u_t          y_t = (C_t h_t + D u_t) silu(z_t)

(Gu and Dao 2023, arXiv 2312.00752, the recurrence of Algorithm 2; RecurFormer's Algorithm 1 uses it as its mixer.)
"""

import os
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from . import scan_cuda
from .scan_block import state_dtype
from .scan_cuda import scan_mamba_ssm
from .scan_torch import blocked_scan

ENVIRONMENT_VARIABLE = "RECURFORMER_SCAN"


def _scan_reference(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """One step after the other under ordinary autograd: the definition, and the decode step when L = 1."""
    dtype = state_dtype(u)
    step_size = delta.to(dtype) if delta_bias is None else delta.to(dtype) + delta_bias.to(dtype).unsqueeze(-1)
    if delta_softplus:
        step_size = F.softplus(step_size)
    A, B, C, values = A.to(dtype), B.to(dtype), C.to(dtype), u.to(dtype)
    state = values.new_zeros(len(u), *A.shape) if initial_state is None else initial_state.to(dtype)  # (B, D, N)
    outputs = []
    # unbind, not indexing: the backward of x[:, :, t] fills a whole tensor at every step, so training were quadratic
    for step, drive, write, read in zip(*(x.unbind(-1) for x in (step_size, step_size * values, B, C)), strict=True):
        state = torch.exp(step.unsqueeze(-1) * A) * state + drive.unsqueeze(-1) * write.unsqueeze(1)
        outputs.append((state * read.unsqueeze(1)).sum(-1))
    y = torch.stack(outputs, -1)
    if D is not None:
        y = y + D.to(dtype).unsqueeze(-1) * values
    if z is not None:
        y = y * F.silu(z.to(dtype))
    return y.to(u.dtype), state


def _scan_torch(*arguments: Tensor | bool | None) -> tuple[Tensor, Tensor]:
    y, last_state, _ = blocked_scan(*arguments)
    return y, last_state


SCAN_BACKENDS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "reference": _scan_reference,
    "torch": _scan_torch,
    "mamba_ssm": scan_mamba_ssm,
}


def available_backends() -> list[str]:
    """Return the names of the backends that can run on this machine."""
    cuda = scan_cuda.EXTENSION is not None and torch.cuda.is_available()
    return [name for name in SCAN_BACKENDS if name != "mamba_ssm" or cuda]


def _choose(u: Tensor, backend: str | None) -> str:
    name = backend or os.environ.get(ENVIRONMENT_VARIABLE)
    if name:
        if name not in SCAN_BACKENDS:
            source = "backend" if backend else f"environment variable {ENVIRONMENT_VARIABLE}"
            raise ValueError(f"{source}={name!r} is no scan backend; choose one of {', '.join(SCAN_BACKENDS)}")
        return name
    if u.shape[-1] == 1 or (u.dtype == torch.float64 and not u.is_meta):
        return "reference"
    return "mamba_ssm" if u.is_cuda and scan_cuda.EXTENSION is not None else "torch"


def _check_shapes(u: Tensor, A: Tensor, **others: Tensor | None) -> None:
    if u.dim() != 3 or A.dim() != 2 or u.shape[-1] == 0:
        raise ValueError(
            f"selective_scan needs u (B, D, L >= 1) and A (D, N), got {tuple(u.shape)} and {tuple(A.shape)}"
        )
    (batch, channels, length), width = u.shape, A.shape[1]
    expected = {
        "delta": (batch, channels, length), "z": (batch, channels, length), "A": (channels, width), "D": (channels,),
        "B": (batch, width, length), "C": (batch, width, length), "delta_bias": (channels,),
        "initial_state": (batch, channels, width),
    }  # fmt: skip
    for name, tensor in {"A": A, **others}.items():
        if tensor is not None and tuple(tensor.shape) != expected[name]:
            raise ValueError(f"selective_scan: {name} has shape {tuple(tensor.shape)}, expected {expected[name]}")


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    initial_state: Tensor | None = None,
    return_last_state: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run the selective scan; differentiable in every tensor argument and through the last state.

    Args:
        u: inputs (B, D, L).
        delta: step sizes (B, D, L), before `delta_bias` and softplus.
        A: state transition (D, N), negative.
        B: input matrix of every step (B, N, L).
        C: output matrix of every step (B, N, L).
        D: skip weights (D,) or None.
        z: gate (B, D, L) or None; the output is multiplied by silu(z).
        delta_bias: added to delta, (D,) or None.
        delta_softplus: whether softplus makes the step sizes positive.
        initial_state: state before the first step (B, D, N); None means zero.
        return_last_state: whether to return the state after the last step too.
        backend: a name in `SCAN_BACKENDS`. By default RECURFORMER_SCAN in the environment decides, else the input:
            float64 and single steps take `reference`, CUDA with mamba-ssm's extension `mamba_ssm`, others `torch`.

    Returns:
        y (B, D, L) in u's dtype; with `return_last_state` also the last state (B, D, N), float32
        (float64 for float64 inputs).

    Raises:
        ValueError: a shape does not fit, or the backend does not exist or cannot run here.
    """
    _check_shapes(u, A, delta=delta, B=B, C=C, D=D, z=z, delta_bias=delta_bias, initial_state=initial_state)
    run = SCAN_BACKENDS[_choose(u, backend)]
    y, last_state = run(u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state)
    return (y, last_state) if return_last_state else y
