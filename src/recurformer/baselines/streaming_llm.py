"""StreamingLLM: attention sinks and the last tokens (arXiv 2309.17453)."""

from dataclasses import dataclass

from torch import Tensor

from recurformer.baselines.context import Context
from recurformer.baselines.eviction import Eviction


@dataclass(frozen=True)
class StreamingLLM(Eviction):
    """The first tokens, half the budget at most, and the last ones.

    Keys keep the rotation of the place where they were read; the original counts places within the cache.

    Attributes:
        sinks: first tokens that stay.
    """

    sinks: int = 4

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """The newer, the more."""
        return context.slots.float()

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The sinks."""
        return context.first((kept // 2).clamp(max=self.sinks))
