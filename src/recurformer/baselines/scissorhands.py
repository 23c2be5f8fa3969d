"""Scissorhands: the persistence of importance (arXiv 2305.17118)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from recurformer.baselines.context import Context
from recurformer.baselines.eviction import Eviction


@dataclass(frozen=True)
class Scissorhands(Eviction):
    """The last tokens, and of the others those that most queries gave more than the mean weight of what they saw.

    A prompt's last `history` queries count, and all generated ones; equals go to the newer token. One token leaves at
    a time where the original drops half the cache at once. Query heads that share keys are averaged.

    Attributes:
        history: queries of a prompt that count.
        recent: last tokens that stay; half the budget at most.
    """

    history: int = 400
    recent: int = 10

    accumulates: ClassVar[bool] = True

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """How many queries gave more than their mean so far."""
        scores = context.accumulated
        for _, weights in context.weights(self.history):
            seen = (weights > 0).sum(-1, keepdim=True)
            scores = scores + (weights * seen > 1).float().mean(2).sum(2)
        return scores

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The last tokens."""
        return context.last((kept // 2).clamp(max=self.recent))
