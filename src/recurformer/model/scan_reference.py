"""The selective scan as it is defined: one step after the other under ordinary autograd.

Slow, differentiable in everything, exact in float64: every other backend is tested against it.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from .scan_block import state_dtype
from .scan_inputs import ScanInputs


def scan_reference(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the definition; see `recurformer.model.scan.selective_scan`."""
    u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus = inputs
    dtype = state_dtype(u)
    step_size = delta.to(dtype) if delta_bias is None else delta.to(dtype) + delta_bias.to(dtype).unsqueeze(-1)
    if delta_softplus:
        step_size = F.softplus(step_size)
    A, B, C, values = A.to(dtype), B.to(dtype), C.to(dtype), u.to(dtype)
    state = values.new_zeros(len(u), *A.shape) if initial_state is None else initial_state.to(dtype)  # (B, D, N)
    outputs = []
    # unbind, not indexing: the backward of x[:, :, t] fills a whole tensor at every step: quadratic training
    for step, drive, write, read in zip(*(x.unbind(-1) for x in (step_size, step_size * values, B, C)), strict=True):
        state = torch.exp(step.unsqueeze(-1) * A) * state + drive.unsqueeze(-1) * write.unsqueeze(1)
        outputs.append((state * read.unsqueeze(1)).sum(-1))
    y = torch.stack(outputs, -1)
    if D is not None:
        y = y + D.to(dtype).unsqueeze(-1) * values
    if z is not None:
        y = y * F.silu(z.to(dtype))
    return y.to(u.dtype), state
