"""The selective scan of Mamba (S6), in mamba_ssm's signature and layout, with an initial state, on several backends.

    h_t = exp(delta_t A) h_{t-1} + delta_t B_t u_t          y_t = (C_t h_t + D u_t) silu(z_t)

(Gu and Dao 2023, arXiv 2312.00752, the recurrence of Algorithm 2; RecurFormer's Algorithm 1 uses it as its mixer.)
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .cpp import refuses_scan, scan_cpp
from .scan_cuda import refuses as refuses_mamba_ssm
from .scan_cuda import scan_mamba_ssm
from .scan_inputs import ENVIRONMENT_VARIABLE, ScanInputs, forced
from .scan_torch import scan_reference, scan_torch
from .scan_triton import refuses as refuses_triton
from .scan_triton import scan_triton


@dataclass(frozen=True)
class ScanBackend:
    """One way to run the scan.

    Attributes:
        run: returns y and the last state.
        refuses: given (u, A, delta_softplus), says in one clause why they cannot be run, or None.
        text: its description, for people.
    """

    run: Callable[[ScanInputs], tuple[Tensor, Tensor]]
    refuses: Callable[[Tensor, Tensor, bool], str | None]
    text: str


def _refuses_nothing(u: Tensor, A: Tensor, delta_softplus: bool) -> None:
    return None


SCAN_BACKENDS = {
    "mamba_ssm": ScanBackend(scan_mamba_ssm, refuses_mamba_ssm, "mamba-ssm's CUDA kernel"),
    "cpp": ScanBackend(scan_cpp, refuses_scan, "our C++ kernel for the CPU"),
    "triton": ScanBackend(scan_triton, refuses_triton, "our Triton kernels for CUDA"),
    "torch": ScanBackend(scan_torch, _refuses_nothing, "blocks of steps in plain torch"),
    "reference": ScanBackend(scan_reference, _refuses_nothing, "the definition, step by step"),
}
"""By name; by default the first that takes the input runs."""

used_backends: set[str] = set()
"""The backends that have run in this process; run records name them."""


def choose_backend(u: Tensor, A: Tensor, delta_softplus: bool, backend: str | None = None) -> str:
    """Return the name of the backend that runs these inputs.

    Raises:
        ValueError: the named backend, here or by the environment, does not exist or cannot run them.
    """
    name = backend or forced()
    if name:
        source = f"backend={name!r}" if backend else f"environment variable {ENVIRONMENT_VARIABLE}={name!r}"
        if name not in SCAN_BACKENDS:
            raise ValueError(f"{source} is no scan backend; choose one of {', '.join(SCAN_BACKENDS)}")
        if (reason := SCAN_BACKENDS[name].refuses(u, A, delta_softplus)) is not None:
            raise ValueError(f"{source} cannot run here: {reason}")
        return name
    if u.dtype == torch.float64 and not u.is_meta:
        return "reference"
    chosen = next(name for name, each in SCAN_BACKENDS.items() if each.refuses(u, A, delta_softplus) is None)
    return "reference" if chosen == "torch" and u.shape[-1] == 1 else chosen


def _check_shapes(u: Tensor, A: Tensor, **others: Tensor | None) -> None:
    if u.dim() != 3 or A.dim() != 2 or u.shape[-1] == 0:
        raise ValueError(
            f"selective_scan needs u (B, D, L >= 1) and A (D, N), got {tuple(u.shape)} and {tuple(A.shape)}"
        )
    (batch, channels, length), width = u.shape, A.shape[1]
    row, matrix = (batch, channels, length), (batch, width, length)
    expected = {"delta": row, "z": row, "A": (channels, width), "B": matrix, "C": matrix, "D": (channels,)}
    expected |= {"delta_bias": (channels,), "initial_state": (batch, channels, width)}
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
            float64 takes `reference`, others the first of the registry that can run them.

    Returns:
        y (B, D, L) in u's dtype; with `return_last_state` also the last state (B, D, N), float32
        (float64 for float64 inputs).

    Raises:
        ValueError: a shape does not fit, the backend does not exist or cannot run here, or A is not negative (which
            only `cpp` looks at).
    """
    _check_shapes(u, A, delta=delta, B=B, C=C, D=D, z=z, delta_bias=delta_bias, initial_state=initial_state)
    name = choose_backend(u, A, delta_softplus, backend)
    if not torch.compiler.is_compiling():
        used_backends.add(name)
    inputs = ScanInputs(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus)
    y, last_state = SCAN_BACKENDS[name].run(inputs)
    return (y, last_state) if return_last_state else y
