"""PyramidInfer (arXiv 2405.12532) as the paper's numbers have it: each layer keeps 0.7 of what the one below keeps."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from recurformer.baselines.context import Context
from recurformer.baselines.eviction import Eviction


@dataclass(frozen=True)
class PyramidInferPaper(Eviction):
    """Layer l keeps floor(length * keep^l) tokens, at least `minimum`: those that the last ones attend to most.

    The first layer keeps all, so no budget below one layer's share can be met; the nearest is taken. Only tokens that
    are read several at a time (the prompt) are evicted: the cache grows with each generated token.

    Attributes:
        keep: share that the next layer keeps; None: solved from the budget. With a share the budget plays no role.
        minimum: tokens that every layer keeps; a quarter of the budget at most when `keep` is solved from it.
        recent_share: part of the kept tokens that are simply the last ones, which judge the others.
    """

    keep: float | None = None
    minimum: int = 32
    recent_share: float = 0.2

    @property
    def in_decoding(self) -> None:
        """Nothing is evicted."""
        return None

    def kept(self, context: Context) -> Tensor:
        """What `lengths` says of this layer, (B,)."""
        lengths = [self.lengths(tokens, context.layers)[context.layer] for tokens in context.tokens.tolist()]
        return torch.tensor(lengths, device=context.tokens.device)

    def lengths(self, tokens: int, layers: int) -> list[int]:
        """Return how many of a prompt's tokens each layer keeps."""
        if self.keep is not None:
            return _lengths(tokens, layers, self.keep, self.minimum)
        share = self.share(tokens)
        minimum = min(self.minimum, int(share * tokens / 4))
        return _lengths(tokens, layers, _solve(tokens, layers, share, minimum), minimum)

    def _recent(self, kept: Tensor) -> Tensor:
        return (kept * self.recent_share).long().clamp(min=1)

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """Attention of the last tokens, the same for all heads."""
        return context.recent_attention(self._recent(kept).minimum(context.read)).mean((1, 2))[:, None]

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The last tokens."""
        return context.last(self._recent(kept))


def _lengths(tokens: int, layers: int, keep: float, minimum: int) -> list[int]:
    return [min(tokens, max(minimum, int(tokens * keep**layer))) for layer in range(layers)]


@lru_cache
def _solve(tokens: int, layers: int, share: float, minimum: int) -> float:
    """The share `keep` with which layers keep on average as near to `share` of the tokens as they can, from below."""
    low, high = 0.0, 1.0
    if share == high:
        return high
    for _ in range(40):
        middle = (low + high) / 2
        if sum(_lengths(tokens, layers, middle, minimum)) > share * tokens * layers:
            high = middle
        else:
            low = middle
    return low
