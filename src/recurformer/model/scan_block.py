"""One block of consecutive steps of the selective scan, held in the processor's cache."""

import torch
from torch import Tensor
from torch.nn import functional as F

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
