"""A transformers cache that holds what an eviction method keeps, and attends to it."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from recurformer.baselines.context import PADDING, Arrival
from recurformer.baselines.eviction import Eviction
from recurformer.baselines.layer import EvictingLayer
from recurformer.baselines.pruning import StatePruning


class EvictingCache(Cache):
    """A cache that holds only what an eviction method keeps; it works inside `evicting(model)`.

    Its length, which positions follow, is that of all the tokens that it has seen.

    Args:
        eviction: the method.
        layers: decoder layers of the model.
    """

    layers: list[Any]
    arrival: Arrival  # the new tokens that come to the present layer

    def __init__(self, eviction: Eviction, layers: int):
        held: list[Any] = [EvictingLayer(eviction, layer, layers) for layer in range(layers)]
        super().__init__(layers=held)
        self.eviction = eviction
        self.reset()

    def reset(self) -> None:
        """Hold nothing, as at first."""
        super().reset()
        self.seen = 0  # tokens and padding
        self.tokens: Tensor | None = None  # of each sample, without padding, (B,)
        self.prompt: Tensor | None = None  # likewise when several were last read at once
        self.pruning: StatePruning | None = None
        self.watched: int | None = None  # the layer whose attention function will store what `update` is given

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Hand the new tokens on to the attention function.

        Raises:
            ValueError: the model is not inside `evicting(model)`.
        """
        if self.watched != layer_idx:
            raise ValueError("an EvictingCache works only inside `with evicting(model):`")
        self.watched = None
        return key_states, value_states

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
    ) -> Tensor:
        """Attend in one layer, then evict.

        Args:
            layer: index of the decoder layer; layers come in order.
            query: (B, H, q, D), rotated.
            key: (B, KV heads, q, D) of the new tokens, rotated.
            value: likewise.
            mask: the library's mask (B, 1, q, tokens so far) bool, of which only the padding counts; None: no padding.
            scaling: factor of the scores before the softmax.

        Returns:
            (B, q, H, D).
        """
        if layer == 0:
            self.arrival = self._arrival(query, mask)
        output, context = self.layers[layer].attend(query, key, value, self.arrival, scaling)
        if self.pruning is not None:
            self.arrival = replace(self.arrival, slots=self.pruning.choose(self.eviction, context))
        return output.transpose(1, 2)

    def _arrival(self, query: Tensor, mask: Tensor | None) -> Arrival:
        batch, _, new, _ = query.shape
        if mask is None:
            valid = torch.ones(batch, new, dtype=torch.bool, device=query.device)
        else:
            valid = mask[:, 0, -1, -new:].expand(batch, -1)  # the last token sees all that is not padding
        read = valid.sum(-1)
        before = torch.zeros_like(read) if self.tokens is None else self.tokens
        slots = (before[:, None] + valid.cumsum(-1) - 1).masked_fill(~valid, PADDING).int()
        self.tokens, self.seen = before + read, self.seen + new
        self.prompt = self.tokens if new > 1 or self.prompt is None else self.prompt
        return Arrival(slots, self.tokens, read, self.tokens - self.prompt)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens and padding that the cache has seen."""
        return self.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length and offset of the library's mask, which spans all that has been seen."""
        return self.seen + query_length, 0

    def batch_select_indices(self, indices: Tensor) -> None:
        """Hold these samples only, in this order."""
        for layer in self.layers:
            layer.select(indices)
        if self.tokens is not None and self.prompt is not None:
            self.tokens, self.prompt = (count[indices.to(count.device)] for count in (self.tokens, self.prompt))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Hold for each beam what the beam had that it goes on from."""
        self.batch_select_indices(beam_idx)
