"""The selective scan in plain torch: blocks of steps in order, linear-cost autograd, no compiler needed.

One block of at most `BLOCK` steps stays in the processor's cache. The forward pass keeps only the state at every
block's start; the backward pass recomputes the states of one block at a time, in reverse. Both passes are opaque
operators, so that `torch.compile` does not unroll the steps and the meta device gets shapes without a loop.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from .scan_block import Block, block_steps, spans, state_dtype, time_first
from .scan_inputs import ScanInputs, scan_operator


def _forward(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus):
    """Return y (B, D, L), the last state (B, D, N) and the states at the blocks' starts (blocks, B, N, D)."""
    y, last_state, starts = _empty_outputs(u, delta, A)
    state = torch.zeros_like(starts[0]) if initial_state is None else initial_state.to(starts.dtype).transpose(1, 2)
    transition = A.to(starts.dtype).t().contiguous()  # (N, D)
    with torch.autocast(u.device.type, enabled=False):  # else the matrix products inside would leave float32
        steps = block_steps(u, A)
        for start, stop in spans(u.shape[-1], steps):
            starts[start // steps] = state
            block = Block((start, stop), state, u, delta, transition, B, C, delta_bias, delta_softplus)
            state = block.states[-1]
            out = block.output(D)
            if z is not None:
                out *= F.silu(time_first(z, start, stop, out.dtype))
            y[:, :, start:stop] = out.permute(1, 2, 0)
        last_state.copy_(state.transpose(1, 2))
    return y, last_state, starts


def _empty_outputs(u, delta, A, *_):
    batch, channels, length = u.shape
    dtype, width = state_dtype(u), A.shape[1]
    y = u.new_empty(batch, length, channels).transpose(1, 2)  # the output projection reads it as (B, L, D)
    steps = block_steps(u, A)
    blocks = (length + steps - 1) // steps
    return (
        y,
        u.new_empty(batch, channels, width, dtype=dtype),
        u.new_empty(blocks, batch, width, channels, dtype=dtype),
    )


def _backward(
    grad_y, grad_last, starts, u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus
):  # fmt: skip
    """Return the gradients of all tensors; empty for an absent one."""
    inputs = (u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus)
    du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial = _empty_gradients(grad_y, grad_last, starts, *inputs)
    transition = A.to(starts.dtype).t().contiguous()
    sum_A, sum_D, sum_bias = torch.zeros_like(transition), transition.new_zeros(len(A)), transition.new_zeros(len(A))
    grad_state = torch.zeros_like(starts[0]) if grad_last is None else grad_last.to(starts.dtype).transpose(1, 2)
    skip = None if D is None else D.to(starts.dtype)
    with torch.autocast(u.device.type, enabled=False):
        steps = block_steps(u, A)
        for start, stop in reversed(spans(u.shape[-1], steps)):
            span = (start, stop)
            block = Block(span, starts[start // steps], u, delta, transition, B, C, delta_bias, delta_softplus)
            out_grad = torch.zeros_like(block.u) if grad_y is None else time_first(grad_y, *span, starts.dtype)
            if z is not None:
                gate = time_first(z, *span, starts.dtype)
                sigmoid = torch.sigmoid(gate)
                dz[:, :, start:stop] = (out_grad * block.output(D) * sigmoid * (1 + gate * (1 - sigmoid))).permute(
                    1, 2, 0
                )
                out_grad = out_grad * gate * sigmoid
            grads = block.state_gradients(out_grad, grad_state)
            grad_state = block.decay[0] * grads[0]
            dC[:, :, start:stop] = torch.matmul(block.states, out_grad.unsqueeze(-1)).squeeze(-1).permute(1, 2, 0)
            dB[:, :, start:stop] = (
                torch.matmul(grads, (block.delta * block.u).unsqueeze(-1)).squeeze(-1).permute(1, 2, 0)
            )
            drive_grad = torch.matmul(block.B.unsqueeze(-2), grads).squeeze(-2)  # of delta * u, (K, B, D)
            exponent_grad = grads.mul_(block.decay).mul_(block.history[:-1])  # of delta * A, (K, B, N, D)
            sum_A += (exponent_grad * block.delta.unsqueeze(2)).sum((0, 1))
            raw_grad = drive_grad * block.u + (exponent_grad * transition).sum(2)
            if delta_softplus:
                raw_grad *= torch.sigmoid(block.raw)
            u_grad = drive_grad * block.delta
            if skip is not None:
                u_grad += out_grad * skip
            du[:, :, start:stop], ddelta[:, :, start:stop] = u_grad.permute(1, 2, 0), raw_grad.permute(1, 2, 0)
            sum_D += (out_grad * block.u).sum((0, 1))
            sum_bias += raw_grad.sum((0, 1))
    dA.copy_(sum_A.t())
    for grad, value in ((dD, sum_D), (dbias, sum_bias), (dinitial, grad_state.transpose(1, 2))):
        if grad.numel():
            grad.copy_(value)
    return [du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial]


def _empty_gradients(grad_y, grad_last, starts, u, *inputs):
    return [u.new_empty(0) if x is None else x.new_empty(x.shape) for x in (u, *inputs[:-1])]


blocked_scan, blocked_scan_backward = scan_operator(
    __name__, "blocked_scan", (_forward, _backward), (_empty_outputs, _empty_gradients)
)


def scan_torch(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the blocks; see `recurformer.model.scan.selective_scan`."""
    y, last_state, _ = blocked_scan(*inputs)
    return y, last_state
