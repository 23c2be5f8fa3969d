"""One layer's part of an EvictingCache: attend to what is held and to new tokens, then hold what the method keeps."""

from collections.abc import Iterator

import torch
from torch import Tensor

from recurformer.baselines.context import Arrival, Context
from recurformer.baselines.eviction import Eviction
from recurformer.baselines.held import Held, keep, ranked, with_mean_of_dropped


class EvictingLayer:
    """One layer's kept tokens, by groups of heads that keep equally many."""

    is_compileable = is_croppable = supports_early_init = False  # what transformers asks of a cache's layers

    def __init__(self, eviction: Eviction, layer: int, layers: int):
        self.eviction, self.layer, self.layers = eviction, layer, layers
        self.groups: list[Held] = []

    def held_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (kind, tensor) for everything that the layer holds."""
        for held in self.groups:
            yield from held.tensors.items()

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, arrival: Arrival, scaling: float
    ) -> tuple[Tensor, Context]:
        """Attend to what is held and to the new tokens, then keep what the method keeps.

        Args:
            query: (B, H, q, D), rotated.
            key: (B, KV heads, q, D), rotated.
            value: likewise.
            arrival: what the new tokens are.
            scaling: factor of the scores before the softmax.

        Returns:
            (B, H, q, D), and what the last group of heads attended with.
        """
        several = not self.groups or query.shape[2] > 1
        eviction = self.eviction if several else self.eviction.in_decoding
        if not self.groups:
            groups = self.eviction.head_groups(self.layer, key.shape[1])
            self.groups = [Held.nothing(heads, key, self.eviction.accumulates) for heads in groups]
        query = query.unflatten(1, (key.shape[1], -1))
        output = torch.empty_like(query)
        for index in range(len(self.groups)):
            for chunk in self._chunks(query.shape[3]):
                context = self._context(self.groups[index], query, key, value, arrival, scaling, chunk)
                output[:, context.heads, :, chunk] = context.attend()
                self.groups[index] = self._evict(eviction, context)
        return output.flatten(1, 2), context

    def _chunks(self, new: int) -> list[slice]:
        """The new tokens in pieces; only the first may be shorter, so that padding on the left moves no border."""
        size = self.eviction.chunk or new
        return [slice(max(stop - size, 0), stop) for stop in range((new - 1) % size + 1, new + 1, size)]

    def _context(
        self, held: Held, query: Tensor, key: Tensor, value: Tensor, arrival: Arrival, scaling: float, chunk: slice
    ) -> Context:
        queries, new = query[:, held.heads], arrival.slots[:, None, chunk].expand(-1, len(held.heads), -1)
        return Context(
            layer=self.layer,
            layers=self.layers,
            heads=held.heads,
            tokens=arrival.tokens,
            read=arrival.read,
            generated=arrival.generated,
            queries=queries[:, :, :, chunk],
            final=queries,
            keys=torch.cat([held.keys, key[:, held.heads, chunk]], 2),
            values=torch.cat([held.values, value[:, held.heads, chunk]], 2),
            slots=torch.cat([held.slots, new], 2),
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
        places, slots = ranked(context, importance, eviction.protected(context, kept), kept)
        held = keep(context, places, slots, importance if eviction.accumulates else None)
        return with_mean_of_dropped(held, context, places) if eviction.compensates else held

    def select(self, samples: Tensor) -> None:
        """Hold these samples only, in this order."""
        self.groups = [held.of_samples(samples.to(held.slots.device)) for held in self.groups]

    def reset(self) -> None:
        """Hold nothing, as at first."""
        self.groups = []


def _everything(context: Context) -> Held:
    return Held(context.heads, context.keys, context.values, context.slots, context.scores)
