"""H2O: heavy hitters of the accumulated attention, and the last tokens (arXiv 2306.14048)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from recurformer.baselines.context import Context
from recurformer.baselines.eviction import Eviction


@dataclass(frozen=True)
class H2O(Eviction):
    """The last half of the budget, and of the others those with the largest sum of attention so far.

    Tokens that are read at once are judged at once, when all have been read. Query heads that share keys are averaged.
    """

    accumulates: ClassVar[bool] = True

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """The sum of attention so far."""
        scores = context.accumulated
        for _, weights in context.weights():
            scores = scores + weights.mean(2).sum(2)
        return scores

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The last tokens."""
        return context.last(kept - kept // 2)
