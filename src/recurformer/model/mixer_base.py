"""The interface of mixers, which stand in the place of a layer's replaced heads, and tools that they share.

A mixer knows neither the retained heads nor the projections. It turns the replaced heads' values, and with
`reads_keys` their queries and keys, into their outputs. Its state has a fixed size and lives in the cache's own slots
for convolution windows and recurrent states.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache

from .layout import HeadLayout
from .stock import rotate


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

    def previous(self, cache: Cache | None, kind: str) -> Tensor | None:
        """Return this layer's state of a kind, "conv" or "recurrent"; None before the first input."""
        if cache is None:
            return None
        state = getattr(cache.layers[self.layer_index], f"{kind}_states")[0]
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
