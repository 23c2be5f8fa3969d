"""The selective scan in plain torch: blocks of steps in order, linear-cost autograd, no compiler and no device needed.

One block of `BLOCK` steps stays in the processor's cache. The forward pass keeps only the state at every block's start; the
backward pass recomputes the states of one block at a time, in reverse. Both passes are opaque operators, so that `torch.compile`
does not unroll the steps and the meta device gets shapes without a loop.
"""

import re
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 32


def operator_name(module: str, name: str) -> str:
    """Return `<module>::<name>` as an operator name, so that a second copy of this code (trust_remote_code) registers its own."""
    return f"{re.sub(r'[^0-9A-Za-z]', '_', module)}::{name}"


def state_dtype(u: Tensor) -> torch.dtype:
    """Return the precision of the states: float64 for float64 inputs, else float32 (also under bfloat16 inputs)."""
    return torch.float64 if u.dtype == torch.float64 else torch.float32


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]


def _time_first(x: Tensor, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Take steps [start, stop) of (B, X, L) as a contiguous (K, B, X); also right for expanded (stride 0) gradients."""
    return x[:, :, start:stop].permute(2, 0, 1).to(dtype).contiguous()


class _Block:
    """The inputs and the states of one block of K steps, computed from the state at its start."""

    def __init__(
        self, span: tuple[int, int], state: Tensor, u: Tensor, delta: Tensor, transition: Tensor, B: Tensor, C: Tensor,
        delta_bias: Tensor | None, delta_softplus: bool,
    ):  # fmt: skip
        dtype = transition.dtype
        self.u, self.raw, self.B, self.C = (_time_first(x, *span, dtype) for x in (u, delta, B, C))
        if delta_bias is not None:
            self.raw += delta_bias.to(dtype)
        self.delta = F.softplus(self.raw) if delta_softplus else self.raw
        self.decay = torch.exp(self.delta.unsqueeze(2) * transition)  # (K, B, N, D)
        self.history = state.new_empty(len(self.u) + 1, *state.shape)  # the start's state, then the K states
        self.history[0] = state
        self.states = self.history[1:]
        torch.mul((self.delta * self.u).unsqueeze(2), self.B.unsqueeze(-1), out=self.states)
        for before, after, decay in zip(self.history[:-1].unbind(0), self.states.unbind(0), self.decay.unbind(0), strict=True):
            after.addcmul_(decay, before)

    def output(self, D: Tensor | None) -> Tensor:
        """C_t h_t + D u_t, before the gate, (K, B, D)."""
        y = torch.matmul(self.C.unsqueeze(-2), self.states).squeeze(-2)
        return y if D is None else y.addcmul_(self.u, D.to(y.dtype))

    def state_gradients(self, grad_y: Tensor, grad_end: Tensor) -> Tensor:
        """Gradients of the K states (K, B, N, D) from those of the outputs and of what follows the block."""
        grads = grad_y.unsqueeze(2) * self.C.unsqueeze(-1)
        steps = grads.unbind(0)
        steps[-1].add_(grad_end)
        for t in range(len(steps) - 2, -1, -1):
            steps[t].addcmul_(self.decay[t + 1], steps[t + 1])
        return grads


def _scan_blocks(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, delta_bias: Tensor | None, delta_softplus: bool, state: Tensor
) -> Iterator[tuple[int, int, _Block]]:
    transition = A.to(state.dtype).t().contiguous()  # (N, D)
    for start, stop in _blocks(u.shape[-1]):
        block = _Block((start, stop), state, u, delta, transition, B, C, delta_bias, delta_softplus)
        yield start, stop, block
        state = block.states[-1]


@torch.library.custom_op(operator_name(__name__, "blocked_scan"), mutates_args=())
def blocked_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None, delta_bias: Tensor | None,
    delta_softplus: bool, initial_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return y (B, D, L), the last state (B, D, N) and the states at the blocks' starts (blocks, B, N, D)."""
    y, last_state, starts = _empty_outputs(u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state)
    state = torch.zeros_like(starts[0]) if initial_state is None else initial_state.to(starts.dtype).transpose(1, 2)
    with torch.autocast(u.device.type, enabled=False):  # else the matrix products inside would leave float32
        for start, stop, block in _scan_blocks(u, delta, A, B, C, delta_bias, delta_softplus, state):
            starts[start // BLOCK] = block.history[0]
            out = block.output(D)
            if z is not None:
                out *= F.silu(_time_first(z, start, stop, out.dtype))
            y[:, :, start:stop] = out.permute(1, 2, 0)
        last_state.copy_(block.states[-1].transpose(1, 2))
    return y, last_state, starts


@blocked_scan.register_fake
def _empty_outputs(u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state):
    batch, channels, length = u.shape
    dtype, width = state_dtype(u), A.shape[1]
    y = u.new_empty(batch, length, channels).transpose(1, 2)  # the output projection reads it as (B, L, D)
    blocks = (length + BLOCK - 1) // BLOCK
    return (
        y,
        u.new_empty(batch, channels, width, dtype=dtype),
        u.new_empty(blocks, batch, width, channels, dtype=dtype),
    )


@torch.library.custom_op(operator_name(__name__, "blocked_scan_backward"), mutates_args=())
def blocked_scan_backward(
    grad_y: Tensor | None, grad_last: Tensor | None, starts: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor,
    D: Tensor | None, z: Tensor | None, delta_bias: Tensor | None, delta_softplus: bool, initial_state: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of u, delta, A, B, C, D, z, delta_bias, initial_state; an absent input's gradient is empty."""
    inputs = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial = _empty_gradients(
        grad_y, grad_last, starts, *inputs[:-1], delta_softplus, initial_state
    )
    transition = A.to(starts.dtype).t().contiguous()
    sum_A, sum_D, sum_bias = torch.zeros_like(transition), transition.new_zeros(len(A)), transition.new_zeros(len(A))
    grad_state = torch.zeros_like(starts[0]) if grad_last is None else grad_last.to(starts.dtype).transpose(1, 2)
    skip = None if D is None else D.to(starts.dtype)
    with torch.autocast(u.device.type, enabled=False):
        for start, stop in reversed(_blocks(u.shape[-1])):
            span = (start, stop)
            block = _Block(span, starts[start // BLOCK], u, delta, transition, B, C, delta_bias, delta_softplus)
            out_grad = torch.zeros_like(block.u) if grad_y is None else _time_first(grad_y, *span, starts.dtype)
            if z is not None:
                gate = _time_first(z, *span, starts.dtype)
                sigmoid = torch.sigmoid(gate)
                dz[:, :, start:stop] = (
                    out_grad * block.output(D) * sigmoid * (1 + gate * (1 - sigmoid))
                ).permute(1, 2, 0)  # fmt: skip
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


@blocked_scan_backward.register_fake
def _empty_gradients(grad_y, grad_last, starts, u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state):
    inputs = (u, delta, A, B, C, D, z, delta_bias, initial_state)
    return [u.new_empty(0) if x is None else x.new_empty(x.shape) for x in inputs]


def _save_inputs(ctx, inputs, output):
    *tensors, ctx.delta_softplus, initial_state = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, initial_state, output[2])


def _backward(ctx, grad_y, grad_last, _grad_starts):
    *tensors, initial_state, starts = ctx.saved_tensors
    grads = blocked_scan_backward(grad_y, grad_last, starts, *tensors, ctx.delta_softplus, initial_state)
    *grads, grad_initial = (
        None if x is None else grad for x, grad in zip((*tensors, initial_state), grads, strict=True)
    )
    return *grads, None, grad_initial


blocked_scan.register_autograd(_backward, setup_context=_save_inputs)
