"""The interface of mixers, which stand in the place of a layer's replaced heads, and tools that they share.

A mixer knows neither the retained heads nor the projections. It turns the replaced heads' values, and with
`reads_keys` their queries and keys, into their outputs. Its state grows up to a fixed size and lives in the cache's own
slots for convolution windows and recurrent states.

Compiled code cannot see a length. There a loop over blocks of steps would hold for one length only, so `spans` gathers
all blocks at once. It neither pads nor slices, because the compiler would ask whether anything is missing or left over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache

from .layout import HeadLayout, rotate

CHUNK = 64  # steps that `decayed_recurrence` compares at once


@dataclass(frozen=True, eq=False)
class FusedWeights:
    """Weights that one layer computes with in place of the factors of them (`recurformer.folded`).

    Attributes:
        output: (hidden, retained features + features that the mixer's readout reads), the readout and the output
            projection in one; None: not fused.
    """

    output: Tensor | None


class ReplacedHeads(NamedTuple):
    """Queries and keys of a layer's replaced heads, not rotated yet.

    Attributes:
        hidden_states: the layer's input (B, L, hidden).
        queries: (B, L, replaced heads, head_dim), scaled such that the original's scores are their products with the
            keys over the square root of head_dim.
        keys: (B, L, KV heads that they read, head_dim), each once.
        position_embeddings: cosines and sines of the rotary embedding, at the number of real tokens before each; None
            in a layer without positions.
    """

    hidden_states: Tensor
    queries: Tensor
    keys: Tensor
    position_embeddings: tuple[Tensor, Tensor] | None

    def rotated(self) -> tuple[Tensor, Tensor]:
        """Return queries and keys as the original attention compares them, (B, heads, L, head_dim)."""
        return rotate(self.queries.transpose(1, 2), self.keys.transpose(1, 2), self.position_embeddings)


class Mixer(nn.Module):
    """Base of the mixers but Mamba, which has its own module.

    `forward(values, cache, padding_mask)`, with `reads_keys` also `heads` (`ReplacedHeads`), returns (B, L, replaced
    heads * head_dim). `values` (B, L, features) are those of the KV heads that replaced heads read, each once. Padding
    tokens, 0 in `padding_mask` (B, L), must enter no state.

    Args:
        config: a RecurFormer config.
        layout: the layer's heads.
        head_dim: features of a head.
        layer_index: the layer's place in the cache.
    """

    reads_keys: ClassVar[bool] = False

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__()
        self.copies = tuple(layout.replaced_value_heads.values())
        self.head_dim, self.layer_index = head_dim, layer_index

    def init_weights(self) -> None:
        """Most mixers have no parameters."""

    def split(self, rows: Tensor) -> Tensor:
        """Return rows (B, L, heads * head_dim) by head, (B, heads, L, head_dim)."""
        return rows.unflatten(2, (-1, self.head_dim)).transpose(1, 2)

    def repeat(self, heads: Tensor) -> Tensor:
        """Return every KV head of (B, KV heads, ...) once for each replaced head that reads it."""
        return repeat_heads(heads, self.copies)

    def previous(self, cache: Cache | None, kind: str, index: int = 0) -> Tensor | None:
        """Return this layer's state of a kind, "conv" or "recurrent"; None before the first input."""
        if cache is None:
            return None
        state = getattr(cache.layers[self.layer_index], f"{kind}_states").get(index)
        # the cache updates in place tensors that autograd has to keep
        return state.clone() if state is not None and torch.is_grad_enabled() else state


def repeat_heads(heads: Tensor, copies: Sequence[int]) -> Tensor:
    """Repeat head i of (B, heads, ...) `copies[i]` times, side by side."""
    if max(copies) == 1:
        return heads
    single = zip(heads.split(1, 1), copies, strict=True)
    return torch.cat([head.expand(-1, count, *head.shape[2:]) for head, count in single], 1)


def join(heads: Tensor, dtype: torch.dtype) -> Tensor:
    """Return heads (B, heads, L, head_dim) side by side, (B, L, heads * head_dim)."""
    return heads.transpose(1, 2).flatten(2).to(dtype)


def weighted_means(sums: Tensor) -> Tensor:
    """Return sums (..., D + 1), the weights' own sum last, over it, (..., D); 0 where nothing has been summed yet."""
    values, weights = sums[..., :-1], sums[..., -1:]
    return values / weights.masked_fill(weights == 0, 1)  # a small bound instead would have an infinite derivative


def any_length(length: int, block: int) -> bool:
    """Return whether the code must work for any number of blocks: compiled code beyond one block."""
    return torch.compiler.is_compiling() and length > block


def spans(length: int, block: int, width: int, device: torch.device) -> Tensor:
    """Return `width` indices for every block of `block` steps, from its first step on, (blocks, width)."""
    count = (length + block - 1) // block
    return block * torch.arange(count, device=device).unsqueeze(1) + torch.arange(width, device=device)


def at_spans(x: Tensor, index: Tensor, dim: int, beyond: int) -> Tensor:
    """Return the entries of x along `dim` at the indices (blocks, width), two axes in its place; outside, `beyond`."""
    length = x.shape[dim]
    index_of_all: list[slice | Tensor] = [*[slice(None)] * dim, index.clamp(0, length - 1)]
    outside = (index < 0) | (index >= length)
    return x[tuple(index_of_all)].masked_fill(outside.view(*index.shape, *[1] * (x.dim() - dim - 1)), beyond)


def own_precision(x: Tensor) -> torch.autocast:
    """Return a context in which products keep the precision of their factors, under autocast too."""
    return torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False)


def decayed_recurrence(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run S_t = exp(log_decay_t) S_{t-1} + k_t v_t^T and read y_t = S_t^T q_t.

    Within a chunk every pair of steps is compared at once, from chunk to chunk the state is carried: the cost is linear
    in the length. Compiled code compares every pair of chunks too. No exponential of a positive number is taken.

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
    if query.is_meta:  # sizes alone are counted there, of inputs so long that a loop would take a minute
        return torch.empty_like(value), state
    outputs = []
    with own_precision(query):
        if query.shape[2] == 1 and not torch.compiler.is_compiling():
            state = log_decay.exp().unsqueeze(-1) * state + key.transpose(-1, -2) * value
            return query @ state, state
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
