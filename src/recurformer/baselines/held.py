"""The tokens that some heads of one layer hold, in tensors of their own; and pruned hidden states."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recurformer.baselines.context import PADDING, Context, token_counts
from recurformer.baselines.eviction import Eviction


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

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by kind."""
        tensors = {"key": self.keys, "value": self.values, "position": self.positions, "score": self.scores}
        return {kind: tensor for kind, tensor in tensors.items() if tensor is not None}

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
    """Add the mean key and value of all tokens that `context` has and `held` has not, in front.

    Args:
        held: that `keep` made of the context.
        context: all tokens.
        places: of the held tokens, see `keep`.
    """
    stayed = torch.zeros_like(context.positions, dtype=torch.bool).scatter_(-1, places, held.positions >= 0)
    dropped = token_counts(context.positions).masked_fill(stayed, 0)
    total = dropped.sum(-1, keepdim=True)
    share = (dropped / total.clamp(min=1)).to(context.keys.dtype)[:, :, None]  # (B, h, 1, n)
    return replace(
        held,
        keys=torch.cat([share @ context.keys, held.keys], 2),
        values=torch.cat([share @ context.values, held.values], 2),
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
