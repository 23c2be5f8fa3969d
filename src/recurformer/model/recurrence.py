"""The recurrence of linear attention and its relatives: a matrix for a state, and one decay a head and step."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .tracing import any_length, at_spans, spans

CHUNK = 64


def decayed_recurrence(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run S_t = exp(log_decay_t) S_{t-1} + k_t v_t^T and read y_t = S_t^T q_t.

    Within a chunk every pair of steps is compared at once, from chunk to chunk the state is carried: the cost is linear
    in the length. Traced code compares every pair of chunks too. No exponential of a positive number is taken.

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
        if any_length(query.shape[2], CHUNK):
            return _chunks_at_once(query, key, value, log_decay, state)
        for q, k, v, steps in zip(*(x.split(CHUNK, 2) for x in (query, key, value, log_decay)), strict=True):
            output, state = _chunk(q, k, v, steps, state)
            outputs.append(output)
    return torch.cat(outputs, 2), state


def _chunk(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of one chunk (..., L, D) and the state after it."""
    since = log_decay.cumsum(-1)  # of the chunk's start
    length = since.shape[-1]
    future = torch.ones(length, length, dtype=torch.bool, device=since.device).triu(1)
    between = (since.unsqueeze(-1) - since.unsqueeze(-2)).masked_fill(future, -torch.inf)
    weights = query @ key.transpose(-1, -2) * between.exp()
    output = weights @ value + since.exp().unsqueeze(-1) * (query @ state)
    left = (since[..., -1:] - since).exp().unsqueeze(-1)
    return output, since[..., -1:, None].exp() * state + (left * key).transpose(-1, -2) @ value


def _chunks_at_once(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for any number of chunks without a loop; padding neither writes nor decays."""
    length = query.shape[2]
    index = spans(length, CHUNK, CHUNK, query.device)
    count = index.shape[0]
    q, k, v, steps = (at_spans(x, index, 2, 0) for x in (query, key, value, log_decay))
    _, written = _chunk(q, k, v, steps, torch.zeros_like(state).unsqueeze(2))  # each alone, (B, H, chunks, N, D)
    since = F.pad(steps.sum(-1).cumsum(-1), (1, 0))  # of the first chunk's start, (B, H, chunks + 1)
    future = torch.ones(count + 1, count + 1, dtype=torch.bool, device=since.device).triu(1)
    between = (since.unsqueeze(-1) - since.unsqueeze(-2)).masked_fill(future, -torch.inf)
    written = torch.cat([state.unsqueeze(2), written], 2)
    states = (between.exp() @ written.flatten(3)).unflatten(3, written.shape[3:])  # in front of every chunk, and after
    outputs, _ = _chunk(q, k, v, steps, states[:, :, :-1])
    outputs = outputs.flatten(2, 3).index_select(2, torch.arange(length, device=index.device))
    return outputs, states[:, :, -1]
