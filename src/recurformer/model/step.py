"""One token through the recurrent parts of a Mamba block: the convolution's window and the state are updated in place.

A decode step spends its time on launches, so each function is one unit that a single kernel can take over.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from . import step_cpp
from .scan_inputs import StepInputs
from .step_cpp import usable


def conv_step(x: Tensor, window: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Shift x (B, D) into the window (B, D, taps) in place and return silu(convolution), (B, D).

    Args:
        x: the new row, already projected.
        window: the last rows, the oldest first; updated.
        weight: (D, taps).
        bias: (D,).
    """
    if usable((x,), (window, weight, bias)):
        return step_cpp.conv_step(x, window, weight, bias)
    window.copy_(torch.cat([window[..., 1:], x.unsqueeze(-1)], -1))
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.silu((window.to(wide) * weight).sum(-1) + bias).to(x.dtype)


def state_step(inputs: StepInputs) -> Tensor:
    """Advance the selective scan by one step, its state in place; returns y (B, D) in u's dtype."""
    u, delta, A, B, C, D, z, state = inputs
    if usable((u, delta, B, C, z), (A, D, state)):
        return step_cpp.state_step(inputs)
    values, delta, B, C, gate = (x.to(state.dtype) for x in (u, delta, B, C, z))
    delta = F.softplus(delta)
    state.mul_(torch.exp(delta.unsqueeze(-1) * A)).add_((delta * values).unsqueeze(-1) * B.unsqueeze(1))
    y = torch.addcmul(torch.bmm(state, C.unsqueeze(-1)).squeeze(-1), D, values)
    return (y * F.silu(gate)).to(u.dtype)


def few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + bias (B, L, outputs) of x (B, L, features); reading W bounds it for one token of few sequences."""
    if x.shape[1] == 1 and step_cpp.takes(x[:, 0], weight, bias):
        return step_cpp.product(x[:, 0], weight, bias).unsqueeze(1)
    return F.linear(x, weight, bias)
