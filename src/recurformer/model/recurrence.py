"""The recurrence of linear attention and its relatives: a matrix for a state, and one decay a head and step."""

import torch
from torch import Tensor

CHUNK = 64


def decayed_recurrence(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run S_t = exp(log_decay_t) S_{t-1} + k_t v_t^T and read y_t = S_t^T q_t.

    Within a chunk every pair of steps is compared at once, from chunk to chunk the state is carried: the cost is linear
    in the length. No exponential of a positive number is taken.

    Args:
        query: (B, H, L, N).
        key: (B, H, L, N).
        value: (B, H, L, D).
        log_decay: (B, H, L), at most 0.
        state: S before the first step (B, H, N, D); None is zero.

    Returns:
        outputs (B, H, L, D) and the last state.
    """
    if state is None:
        state = key.new_zeros(*key.shape[:2], key.shape[-1], value.shape[-1])
    outputs = []
    with torch.autocast("cpu" if query.is_meta else query.device.type, enabled=False):  # states stay in their precision
        for q, k, v, steps in zip(*(x.split(CHUNK, 2) for x in (query, key, value, log_decay)), strict=True):
            output, state = _chunk(q, k, v, steps, state)
            outputs.append(output)
    return torch.cat(outputs, 2), state


def _chunk(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of one chunk and the state behind it."""
    since = log_decay.cumsum(-1)  # of the chunk's start
    length = since.shape[-1]
    future = torch.ones(length, length, dtype=torch.bool, device=since.device).triu(1)
    between = (since.unsqueeze(-1) - since.unsqueeze(-2)).masked_fill(future, -torch.inf)
    weights = query @ key.transpose(-1, -2) * between.exp()
    output = weights @ value + since.exp().unsqueeze(-1) * (query @ state)
    left = (since[..., -1:] - since).exp().unsqueeze(-1)
    return output, since[..., -1:, None].exp() * state + (left * key).transpose(-1, -2) @ value
