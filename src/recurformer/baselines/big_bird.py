"""BigBird's sparse pattern as a cache: first tokens, last tokens and random ones (arXiv 2007.14062)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from recurformer.baselines.context import Context
from recurformer.baselines.eviction import Eviction


@dataclass(frozen=True)
class BigBird(Eviction):
    """The first tokens, the last half of the budget, and of the others random ones, other ones in each head.

    A token draws its lot once, by its place, so that each stays or goes for good.

    Attributes:
        sinks: first tokens that stay; a quarter of the budget at most.
        seed: of the lots.
    """

    sinks: int = 4
    seed: int = 0

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """The lots."""
        generator = torch.Generator().manual_seed(self.seed * context.layers + context.layer)
        lots = torch.rand(int(context.tokens.max()), max(context.heads) + 1, generator=generator)
        lots = lots.T[context.heads].to(kept.device).expand(len(kept), -1, -1)
        return lots.gather(-1, context.slots.clamp(min=0).long())

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The first and the last tokens."""
        return context.first((kept // 4).clamp(max=self.sinks)) | context.last(kept - kept // 2)
