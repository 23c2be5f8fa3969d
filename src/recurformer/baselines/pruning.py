"""Hidden states that go no deeper: of one forward pass's tokens ever fewer reach the next layer."""

from dataclasses import replace

import torch
from torch import Tensor

from recurformer.baselines.context import PADDING, Context
from recurformer.baselines.eviction import Eviction
from recurformer.baselines.held import ranked


class StatePruning:
    """The tokens of one forward pass, which of them have come so far, and how far the others came.

    Args:
        states: (B, q, hidden) that enter the first layer.
    """

    def __init__(self, states: Tensor):
        self.states = states.clone()  # of every token, from the last layer that it came to
        everyone = torch.arange(states.shape[1], device=states.device)
        self.places = everyone.expand(states.shape[:2])  # of the tokens that are here, (B, m)
        self.chosen: Tensor | None = None  # which of those go on, (B, m')

    def choose(self, eviction: Eviction, context: Context) -> Tensor:
        """Decide which tokens go on to the next layer, from one layer's attention; returns their slots (B, m')."""
        new = context.queries.shape[3]
        kept = eviction.kept(context)
        slots = context.slots.clone()
        slots[:, :, :-new] = PADDING  # earlier passes' tokens are not to choose from
        arrived = replace(context, slots=slots)
        if (arrived.is_token.sum(-1) <= kept[:, None]).all():
            return slots[:, 0, -new:]
        importance = eviction.importance(context, kept)
        places, slots = ranked(arrived, importance, eviction.protected(arrived, kept), kept)
        self.chosen = places[:, 0] - (context.slots.shape[-1] - new)
        return slots[:, 0]

    def next_states(self, states: Tensor) -> Tensor:
        """Store what a layer made of the tokens that came to it; returns the states (B, m', hidden) that go on."""
        wide = self.places[..., None].expand(-1, -1, states.shape[-1])
        self.states.scatter_(1, wide, states)
        if self.chosen is not None:
            self.places, self.chosen = self.places.gather(1, self.chosen), None
        return self.of_places(self.states)

    def of_places(self, states: Tensor) -> Tensor:
        """The rows of `states` (B or 1, q, features) of the tokens that are here."""
        states = states.expand(len(self.places), -1, -1)
        return states.gather(1, self.places[..., None].expand(-1, -1, states.shape[-1]))
