"""The selective scan in plain torch: the definition step by step, and blocks of steps with their own backward pass.

One block of at most `BLOCK` steps stays in the processor's cache. The forward pass keeps only the state at every
block's start; the backward pass recomputes the states of one block at a time, in reverse. Both passes are opaque
operators, so that `torch.compile` does not unroll the steps and the meta device gets shapes without a loop.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from .scan_inputs import ScanInputs, empty_gradients, scan_operator


def scan_reference(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the definition under ordinary autograd; see `recurformer.model.scan.selective_scan`.

    Slow, differentiable in everything, exact in float64: every other backend is tested against it.
    """
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


BLOCK = 32
CACHED_STATES = 2**22


def state_dtype(u: Tensor) -> torch.dtype:
    """Return the precision of the states: float64 for float64 inputs, else float32 (also under bfloat16 inputs)."""
    return torch.float64 if u.dtype == torch.float64 else torch.float32


def block_steps(u: Tensor, A: Tensor) -> int:
    """Return the steps of a block: `BLOCK`, or so many fewer that the block's states (B, N, D) still fit the cache."""
    return max(4, min(BLOCK, CACHED_STATES // (len(u) * A.numel())))


def spans(length: int, steps: int) -> list[tuple[int, int]]:
    """Return first and past-the-last step of every block."""
    return [(start, min(start + steps, length)) for start in range(0, length, steps)]


def time_first(x: Tensor, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Take steps [start, stop) of (B, X, L) as a contiguous (K, B, X); also right for expanded (stride 0) gradients."""
    return x[:, :, start:stop].permute(2, 0, 1).to(dtype).contiguous()


class Block:
    """The inputs and the states of one block of K steps, computed from the state at its start."""

    def __init__(
        self,
        span: tuple[int, int],
        state: Tensor,
        u: Tensor,
        delta: Tensor,
        transition: Tensor,
        B: Tensor,
        C: Tensor,
        delta_bias: Tensor | None,
        delta_softplus: bool,
    ):
        dtype = transition.dtype
        self.u, self.raw, self.B, self.C = (time_first(x, *span, dtype) for x in (u, delta, B, C))
        if delta_bias is not None:
            self.raw = self.raw + delta_bias.to(dtype)  # not in place: it may be a view of the input
        self.delta = F.softplus(self.raw) if delta_softplus else self.raw
        self.decay = torch.exp(self.delta.unsqueeze(2) * transition)  # (K, B, N, D)
        self.history = state.new_empty(len(self.u) + 1, *state.shape)  # the start's state, then the K states
        self.history[0] = state
        self.states = self.history[1:]
        torch.mul((self.delta * self.u).unsqueeze(2), self.B.unsqueeze(-1), out=self.states)
        for before, after, decay in zip(
            self.history[:-1].unbind(0), self.states.unbind(0), self.decay.unbind(0), strict=True
        ):
            after.addcmul_(decay, before)

    def output(self, D: Tensor | None) -> Tensor:
        """C_t h_t + D u_t, before the gate, (K, B, D)."""
        y = torch.matmul(self.C.unsqueeze(-2), self.states).squeeze(-2)
        return y if D is None else y.addcmul_(self.u, D.to(y.dtype))

    def state_gradients(self, grad_y: Tensor, grad_end: Tensor) -> Tensor:
        """Gradients of the K states (K, B, N, D) from those of the outputs and of the state after the block."""
        grads = grad_y.unsqueeze(2) * self.C.unsqueeze(-1)
        steps = grads.unbind(0)
        steps[-1].add_(grad_end)
        for t in range(len(steps) - 2, -1, -1):
            steps[t].addcmul_(self.decay[t + 1], steps[t + 1])
        return grads


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
    last_state = u.new_empty(batch, channels, width, dtype=dtype)
    return y, last_state, u.new_empty(blocks, batch, width, channels, dtype=dtype)


def _backward(grad_y, grad_last, starts, *inputs):
    """Return the gradients of all tensors; empty for an absent one."""
    u, delta, A, B, C, D, z, delta_bias, _, delta_softplus = inputs
    du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial = empty_gradients(grad_y, grad_last, starts, *inputs)
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
                gate_grad = out_grad * block.output(D) * sigmoid * (1 + gate * (1 - sigmoid))
                dz[:, :, start:stop] = gate_grad.permute(1, 2, 0)
                out_grad = out_grad * gate * sigmoid
            grads = block.state_gradients(out_grad, grad_state)
            grad_state = block.decay[0] * grads[0]
            drive = block.delta * block.u
            dC[:, :, start:stop] = torch.matmul(block.states, out_grad.unsqueeze(-1)).squeeze(-1).permute(1, 2, 0)
            dB[:, :, start:stop] = torch.matmul(grads, drive.unsqueeze(-1)).squeeze(-1).permute(1, 2, 0)
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


blocked_scan, blocked_scan_backward = scan_operator(
    __name__, "blocked_scan", (_forward, _backward), (_empty_outputs, empty_gradients)
)


def scan_torch(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the blocks; see `recurformer.model.scan.selective_scan`."""
    y, last_state, _ = blocked_scan(*inputs)
    return y, last_state
