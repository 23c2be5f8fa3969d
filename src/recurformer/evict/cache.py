"""A transformers cache that holds the tokens that an eviction method keeps, layer by layer, and attends to them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from recurformer.evict.context import PADDING, Arrival, Context, Eviction, token_counts
from recurformer.model.caches import HybridLayer, Kept, StateLayer


@dataclass(frozen=True)
class Held:
    """The cache of key-value heads that keep equally many tokens; attributes as in `Context`.

    Samples that keep fewer tokens than others have padding in front.
    """

    heads: list[int]
    keys: Tensor
    values: Tensor
    positions: Tensor
    scores: Tensor | None

    @classmethod
    def nothing(cls, heads: list[int], key: Tensor, accumulates: bool) -> "Held":
        """Hold no token yet; `key` (B, KV heads, q, D) tells sizes and type."""
        empty = key.new_empty(len(key), len(heads), 0, key.shape[-1])
        positions = torch.empty(empty.shape[:3], dtype=torch.int32, device=key.device)
        return cls(heads, empty, empty, positions, positions.float() if accumulates else None)

    def of_samples(self, samples: Tensor) -> "Held":
        """The same of these samples."""
        return replace(
            self,
            keys=self.keys[samples],
            values=self.values[samples],
            positions=self.positions[samples],
            scores=None if self.scores is None else self.scores[samples],
        )


def ranked(context: Context, importance: Tensor, protected: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The keys that stay, in their order, padding in front.

    Args:
        context: the keys.
        importance: of each, (B, h or 1, n); of equals the newer stays.
        protected: those that must stay, (B, h, n).
        kept: number that stays of each sample, (B,).

    Returns:
        places (B, h, m) of the keys among the n, and their positions (B, h, m).
    """
    size = min(int(kept.max()), context.keys.shape[2])
    worth = importance.expand(context.positions.shape).masked_fill(protected, float("inf"))
    worth = worth.masked_fill(~context.is_token, float("-inf"))
    order = worth.shape[-1] - 1 - worth.flip(-1).sort(dim=-1, descending=True, stable=True).indices[..., :size]
    chosen = context.positions.gather(-1, order)
    surplus = (torch.arange(size, device=kept.device) >= kept[:, None, None]) | (chosen < 0)
    positions, places = chosen.masked_fill(surplus, PADDING).sort(dim=-1, stable=True)
    return order.gather(-1, places), positions


def keep(context: Context, places: Tensor, positions: Tensor, scores: Tensor | None) -> Held:
    """Hold the keys at `places` (B, h, m), whose `positions` are (B, h, m), with `scores` (B, h, n) of all keys."""
    wide = places[..., None].expand(-1, -1, -1, context.keys.shape[-1])
    return Held(
        context.heads,
        context.keys.gather(2, wide),
        context.values.gather(2, wide),
        positions,
        None if scores is None else scores.expand(context.positions.shape).gather(-1, places),
    )


def with_mean_of_dropped(held: Held, context: Context, places: Tensor) -> Held:
    """Add the mean key and value of all tokens that `context` has and `held` has not, in front; `keep` held those at
    `places`.
    """
    stayed = torch.zeros_like(context.positions, dtype=torch.bool).scatter_(-1, places, held.positions >= 0)
    dropped = token_counts(context.positions).masked_fill(stayed, 0)
    total = dropped.sum(-1, keepdim=True)
    weights = (dropped / total.clamp(min=1)).to(context.keys.dtype)[:, :, None]  # (B, h, 1, n)
    return replace(
        held,
        keys=torch.cat([weights @ context.keys, held.keys], 2),
        values=torch.cat([weights @ context.values, held.values], 2),
        positions=torch.cat([PADDING - total.to(held.positions.dtype), held.positions], 2),
    )


class StatePruning:
    """The hidden states of one forward pass's tokens: of those that are still here, and of the others where they left.

    Args:
        states: (B, q, hidden) that enter the first layer.
    """

    def __init__(self, states: Tensor):
        self.states = states.clone()  # of every token, from the last layer that it came to
        everyone = torch.arange(states.shape[1], device=states.device)
        self.places = everyone.expand(states.shape[:2])  # of the tokens that are still here, (B, m)
        self.chosen: Tensor | None = None  # of those, the ones that go on, (B, m')

    def choose(self, eviction: Eviction, context: Context) -> Tensor:
        """Decide which tokens go on to the next layer, from one layer's attention; returns their positions (B, m')."""
        new = context.queries.shape[3]
        kept = eviction.kept(context)
        positions = context.positions.clone()
        positions[:, :, :-new] = PADDING  # earlier passes' tokens are not to choose from
        arrived = replace(context, positions=positions)
        if (arrived.is_token.sum(-1) <= kept[:, None]).all():
            return positions[:, 0, -new:]
        importance = eviction.importance(context, kept)
        places, positions = ranked(arrived, importance, eviction.protected(arrived, kept), kept)
        self.chosen = places[:, 0] - (context.positions.shape[-1] - new)
        return positions[:, 0]

    def next_states(self, states: Tensor) -> Tensor:
        """Store a layer's outputs of the tokens that came to it; returns the states (B, m', hidden) that go on."""
        wide = self.places[..., None].expand(-1, -1, states.shape[-1])
        self.states.scatter_(1, wide, states)
        if self.chosen is not None:
            self.places, self.chosen = self.places.gather(1, self.chosen), None
        return self.of_places(self.states)

    def of_places(self, states: Tensor) -> Tensor:
        """The rows of `states` (B or 1, q, features) of the tokens that are here."""
        states = states.expand(len(self.places), -1, -1)
        return states.gather(1, self.places[..., None].expand(-1, -1, states.shape[-1]))


class EvictingLayer:
    """One layer's kept tokens, by groups of heads that keep equally many."""

    is_compileable = is_croppable = supports_early_init = False  # transformers reads them of a cache's layers

    def __init__(self, eviction: Eviction, layer: int, layers: int):
        self.eviction, self.layer, self.layers = eviction, layer, layers
        self.groups: list[Held] = []

    def held_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (kind, tensor) for all tensors that the layer holds of tokens."""
        for held in self.groups:
            tensors = {"key": held.keys, "value": held.values, "position": held.positions, "score": held.scores}
            yield from ((kind, tensor) for kind, tensor in tensors.items() if tensor is not None)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, arrival: Arrival, scaling: float
    ) -> tuple[Tensor, Context]:
        """Attend to the held tokens and to the new ones, then evict by the method; see `EvictingCache.attend`.

        Returns:
            (B, H, q, D), and the context of the last group of heads.
        """
        query = query.unflatten(1, (key.shape[1], -1))
        output = torch.empty_like(query)
        for context, chunk in self.arrive(query, key, value, arrival, scaling):
            output[:, context.heads, :, chunk] = context.attend()
        return output.flatten(1, 2), context

    def arrive(
        self, query: Tensor, key: Tensor, value: Tensor, arrival: Arrival, scaling: float
    ) -> Iterator[tuple[Context, slice]]:
        """Take the new tokens in, `query` as (B, KV heads, G, q, D); evict after each step.

        Yields:
            For some heads and a piece of the new tokens, before their eviction: the context; the piece.
        """
        several = not self.groups or query.shape[3] > 1
        eviction = self.eviction if several else self.eviction.in_decoding
        if not self.groups:
            groups = self.eviction.head_groups(self.layer, key.shape[1])
            self.groups = [Held.nothing(heads, key, self.eviction.accumulates) for heads in groups]
        for index in range(len(self.groups)):
            for chunk in self._chunks(query.shape[3]):
                context = self._context(self.groups[index], query, key, value, arrival, scaling, chunk)
                yield context, chunk
                self.groups[index] = self._evict(eviction, context)

    def _chunks(self, new: int) -> list[slice]:
        """The new tokens in pieces; only the first may be shorter, so that padding on the left moves no border."""
        size = self.eviction.chunk or new
        return [slice(max(stop - size, 0), stop) for stop in range((new - 1) % size + 1, new + 1, size)]

    def _context(
        self, held: Held, query: Tensor, key: Tensor, value: Tensor, arrival: Arrival, scaling: float, chunk: slice
    ) -> Context:
        queries, new = query[:, held.heads], arrival.positions[:, None, chunk].expand(-1, len(held.heads), -1)
        return Context(
            layer=self.layer,
            layers=self.layers,
            heads=held.heads,
            tokens=arrival.tokens,
            read_tokens=arrival.read_tokens,
            generated=arrival.generated,
            queries=queries[:, :, :, chunk],
            final=queries,
            keys=torch.cat([held.keys, key[:, held.heads, chunk]], 2),
            values=torch.cat([held.values, value[:, held.heads, chunk]], 2),
            positions=torch.cat([held.positions, new], 2),
            scores=None if held.scores is None else torch.cat([held.scores, torch.zeros_like(new).float()], 2),
            scaling=scaling,
        )

    def _evict(self, eviction: Eviction | None, context: Context) -> Held:
        if eviction is None or eviction.prunes_states:
            return _everything(context)
        kept = eviction.kept(context)
        fits = (context.is_token.sum(-1) <= kept[:, None]).all()
        if fits and not eviction.accumulates:
            return _everything(context)
        importance = eviction.importance(context, kept)
        places, positions = ranked(context, importance, eviction.protected(context, kept), kept)
        held = keep(context, places, positions, importance if eviction.accumulates else None)
        return with_mean_of_dropped(held, context, places) if eviction.compensates else held

    def batch_select_indices(self, indices: Tensor) -> None:
        """Hold these samples only, in this order."""
        self.groups = [held.of_samples(indices.to(held.positions.device)) for held in self.groups]

    def reset(self) -> None:
        """Hold nothing, as at first."""
        self.groups = []


class HybridEvictingLayer(EvictingLayer, HybridLayer):  # type: ignore[misc]
    """The tokens that retained heads keep, beside the states of the mixer in the place of the others."""

    def __init__(self, eviction: Eviction, layer: int, layers: int):
        HybridLayer.__init__(self)
        EvictingLayer.__init__(self, eviction, layer, layers)

    def batch_select_indices(self, indices: Tensor) -> None:
        """See `EvictingLayer`."""
        super().batch_select_indices(indices)
        StateLayer.batch_select_indices(self, indices)

    def reset(self) -> None:
        """See `EvictingLayer`."""
        super().reset()
        HybridLayer.reset(self)


LAYERS: dict[str, Any] = {"hybrid": HybridEvictingLayer, "linear_attention": lambda *_: StateLayer()}
"""Type of a layer -> its layer in the cache; for others `EvictingLayer`."""


def _everything(context: Context) -> Held:
    return Held(context.heads, context.keys, context.values, context.positions, context.scores)


class EvictingCache(Kept, Cache):
    """A cache that holds only the tokens that an eviction method keeps, for the model that `evicting` returns.

    Its length, which positions follow, is that of all the tokens that it has seen.

    Args:
        eviction: the method.
        types: of each decoder layer of the model, in the words of a config's `layer_types`.
    """

    layers: list[Any]
    arrival: Arrival  # the new tokens that come to the present layer

    def __init__(self, eviction: Eviction, types: Sequence[str]):
        layers = [LAYERS.get(kind, EvictingLayer)(eviction, layer, len(types)) for layer, kind in enumerate(types)]
        super().__init__(layers=layers)
        self.eviction = eviction
        self.reset()

    def reset(self) -> None:
        """Hold nothing, as at first."""
        super().reset()
        self.seen = 0  # tokens and padding
        self.latest = len(self.layers)  # the layer that attended last; an earlier one begins a forward pass
        self.tokens: Tensor | None = None  # of each sample, without padding, (B,)
        self.prompt: Tensor | None = None  # likewise when several were last read at once
        self.pruning: StatePruning | None = None
        self.watched: int | None = None  # the layer whose attention function will store the arguments of `update`

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs
    ) -> tuple[Tensor, Tensor]:
        """Hand the new tokens on to the attention function.

        Raises:
            ValueError: the model is none that `evicting` returned.
        """
        if self.watched != layer_idx:
            raise ValueError("an EvictingCache works only with the model that `evicting(model)` returns")
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
        if layer <= self.latest:
            self.arrival = self._arrival(query, mask)
        self.latest = layer
        output, context = self.layers[layer].attend(query, key, value, self.arrival, scaling)
        if self.pruning is not None:
            self.arrival = replace(self.arrival, positions=self.pruning.choose(self.eviction, context))
        return output.transpose(1, 2)

    def _arrival(self, query: Tensor, mask: Tensor | None) -> Arrival:
        batch, _, new, _ = query.shape
        if mask is None:
            valid = torch.ones(batch, new, dtype=torch.bool, device=query.device)
        else:
            valid = mask[:, 0, -1, -new:].expand(batch, -1)  # the last token sees all that is not padding
        read_tokens = valid.sum(-1)
        before = torch.zeros_like(read_tokens) if self.tokens is None else self.tokens
        positions = (before[:, None] + valid.cumsum(-1) - 1).masked_fill(~valid, PADDING).int()
        self.tokens, self.seen = before + read_tokens, self.seen + new
        self.prompt = self.tokens if new > 1 or self.prompt is None else self.prompt
        return Arrival(positions, self.tokens, read_tokens, self.tokens - self.prompt)

    @property
    def reads_at_once(self) -> bool:
        """Whether tokens after the prompt see the same keys when they are read at once as when one by one."""
        return self.eviction.prompt_only and self.eviction.chunk is None and not self.eviction.prunes_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens and padding that the cache has seen."""
        return self.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length and offset of the library's mask, which spans all tokens seen."""
        return self.seen + query_length, 0

    def batch_select_indices(self, indices: Tensor) -> None:
        """Hold these samples only, in this order."""
        super().batch_select_indices(indices)
        if self.tokens is not None and self.prompt is not None:
            self.tokens, self.prompt = (count[indices.to(count.device)] for count in (self.tokens, self.prompt))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Hold every sample so many times."""
        if self.tokens is not None:
            self.batch_select_indices(torch.arange(len(self.tokens)).repeat_interleave(repeats))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Hold for each beam the tokens of the beam that it continues."""
        self.batch_select_indices(beam_idx)
