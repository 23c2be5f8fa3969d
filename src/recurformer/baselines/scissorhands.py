"""Scissorhands: the persistence of importance (arXiv 2305.17118)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from recurformer.baselines.context import PADDING, Context
from recurformer.baselines.eviction import Eviction


@dataclass(frozen=True)
class Scissorhands(Eviction):
    """The last tokens, and of the others those that most queries gave more than the mean weight of what they saw.

    A prompt's last `history` queries count, and all generated ones; equals go to the newer token. One token leaves at
    a time where the original drops half the cache at once. Query heads that share keys count together.

    Attributes:
        history: queries of a prompt that count.
        recent: last tokens that stay; half the budget at most.
    """

    history: int = 400
    recent: int = 10

    accumulates: ClassVar[bool] = True

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """How many queries gave more than their mean so far."""
        scores, new = context.accumulated, context.queries.shape[3]
        seen = (context.slots != PADDING).cumsum(-1)[:, :, None, -new:, None]  # keys that each query sees
        for start, weights in context.weights(self.history):
            scores = scores + (weights * seen[:, :, :, start : start + weights.shape[3]] > 1).sum((2, 3))
        return scores

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The last tokens."""
        return context.last((kept // 2).clamp(max=self.recent))
