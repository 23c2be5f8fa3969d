"""PyramidInfer (arXiv 2405.12532): by the numbers of the RecurFormer paper, and by its authors' code.

`pyramidinfer_rows` counts what it keeps in a model too large to run, of which only the depth matters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from recurformer.evict.cache import EvictingCache
from recurformer.evict.context import Arrival, Context, Eviction
from recurformer.paper import LLAMA2_7B_LAYERS, PYRAMIDINFER_MINIMUM, PYRAMIDINFER_RATIO


def pyramid_lengths(
    tokens: int, layers: int, keep: float = PYRAMIDINFER_RATIO, minimum: int = PYRAMIDINFER_MINIMUM
) -> list[int]:
    """Tokens that each of PyramidInfer's layers keeps, by the paper's numbers (Table 2: 0.1054 and 0.1043).

    Layer l keeps floor(tokens * keep^l), at least `minimum` and never more than there are. The paper's "P_reduce = 0.7"
    is therefore a fraction kept, of the whole length, in every layer.
    """
    return [min(tokens, max(minimum, int(tokens * keep**layer))) for layer in range(layers)]


@dataclass(frozen=True)
class PyramidInferPaper(Eviction):
    """Layer l keeps floor(length * keep^l) tokens, at least `minimum`: those that the last ones attend to most.

    The first layer keeps all: of a smaller budget the nearest is taken. Only tokens that are read several at a time
    (the prompt) are evicted: the cache grows with each generated token.

    Attributes:
        keep: fraction that the next layer keeps, with which the budget plays no role; None: solved from the budget.
        minimum: tokens that every layer keeps; a quarter of the budget at most when `keep` is solved from it.
        recent: part of the kept tokens that are simply the last ones, which judge the others.
    """

    keep: float | None = None
    minimum: int = PYRAMIDINFER_MINIMUM
    recent: float = 0.2

    prompt_only: ClassVar[bool] = True

    def kept(self, context: Context) -> Tensor:
        """The value of `lengths` for this layer, (B,)."""
        lengths = [self.lengths(tokens, context.layers)[context.layer] for tokens in context.tokens.tolist()]
        return torch.tensor(lengths, device=context.tokens.device)

    def lengths(self, tokens: int, layers: int) -> list[int]:
        """Return the number of a prompt's tokens that each layer keeps."""
        if self.keep is not None:
            return pyramid_lengths(tokens, layers, self.keep, self.minimum)
        fraction = self.fraction(tokens)
        minimum = min(self.minimum, int(fraction * tokens / 4))
        return pyramid_lengths(tokens, layers, _keep_for(tokens, layers, fraction, minimum), minimum)

    def _recent(self, kept: Tensor) -> Tensor:
        return (kept * self.recent).long().clamp(min=1)

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """Attention of the last tokens, the same for all heads."""
        return context.recent_attention(self._recent(kept).minimum(context.read_tokens)).mean((1, 2))[:, None]

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The last tokens."""
        return context.last(self._recent(kept))


AS_PRINTED = PyramidInferPaper(1.0, keep=PYRAMIDINFER_RATIO)
"""In the setting of Table 2 (appendix B)."""


@lru_cache
def _keep_for(tokens: int, layers: int, fraction: float, minimum: int) -> float:
    """The `keep` with which layers keep on average as near to `fraction` of the tokens as they can, from below."""
    if fraction == 1.0:
        return 1.0
    most = fraction * tokens * layers
    return _last_that(lambda keep: sum(pyramid_lengths(tokens, layers, keep, minimum)) <= most, 0.0, 1.0)


def _last_that(fits: Callable[[float], bool], start: float, end: float) -> float:
    """The number farthest from `start` towards `end` that `fits`, as `start` does, by bisection."""
    for _ in range(40):
        middle = (start + end) / 2
        if fits(middle):
            start = middle
        else:
            end = middle
    return start


SINKS = 4
BLOCK = 16  # generated tokens that are thinned out together,
BLOCK_FRACTION, BLOCK_DECAY = 0.9, 0.1  # to this fraction of them, which falls to a tenth of it in the deepest layer
MINIMUM = 64  # tokens before the recent ones; a quarter of the budget at most


@dataclass(frozen=True)
class PyramidInferOfficial(Eviction):
    """Behind each layer stay the recent tokens, and of those before them the ones that the recent attend to most.

    The fraction of those that stay falls along a cosine from 1 to `decay`, which is solved from the budget; where 0 is
    not little enough, the cosine is raised to a power. The first two layers see all tokens: of a smaller budget the
    nearest is taken. The cache grows with each generated token, but each block of them is thinned out when it is no
    longer recent (see `BlockThinning`).

    Attributes:
        recent: fraction of the prompt that is recent; half the budget at most.
        newest: weight of the last query among the recent ones that judge, whose first has weight 1.
    """

    recent: float = 0.2
    newest: float = 1.2

    accumulates: ClassVar[bool] = True
    prunes_states: ClassVar[bool] = True

    @property
    def in_decoding(self) -> "BlockThinning | None":
        """Thin out the generated tokens, unless the budget is everything."""
        return None if self.budget == 1.0 else BlockThinning(self.budget, self)

    def kept(self, context: Context) -> Tensor:
        """Number of tokens that pass to the next layer, (B,)."""
        lengths = [self.lengths(count, context.layers)[context.layer + 1] for count in context.read_tokens.tolist()]
        return torch.tensor(lengths, device=context.read_tokens.device)

    def recent_tokens(self, prompts: Tensor) -> Tensor:
        """Number of recent tokens of each prompt, (B,)."""
        return torch.tensor([self._recent(tokens) for tokens in prompts.tolist()], device=prompts.device)

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """Attention of the recent tokens, the same for all heads."""
        return context.recent_attention(self.recent_tokens(context.read_tokens), self.newest).mean((1, 2))[:, None]

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The recent tokens and the sinks."""
        return context.first(SINKS) | context.last(self.recent_tokens(context.read_tokens))

    def lengths(self, tokens: int, layers: int) -> tuple[int, ...]:
        """Return the number of a prompt's tokens that come to each layer, and last of those that leave the last one."""
        return _solve(tokens, layers, self._recent(tokens), self.fraction(tokens))

    def _recent(self, tokens: int) -> int:
        return min(1 + int(tokens * min(self.recent, self.fraction(tokens) / 2)), tokens)


@dataclass(frozen=True)
class BlockThinning(Eviction):
    """Keep, in each block of generated tokens that is no longer recent, those with the most attention since.

    Attributes:
        prompt: the method that evicted the prompt.
    """

    prompt: PyramidInferOfficial

    accumulates: ClassVar[bool] = True

    def _block(self, context: Context) -> Tensor:
        """The tokens that are to be thinned out now, (B, h, n) bool."""
        recent = self.prompt.recent_tokens(context.tokens - context.generated)
        older = context.generated - recent
        due = (older > 0) & (older % BLOCK == 0)
        return context.last(recent + BLOCK) & ~context.last(recent) & due[:, None, None]

    def kept(self, context: Context) -> Tensor:
        """Number of cached tokens that stay, (B,)."""
        stay = max(int(BLOCK * BLOCK_FRACTION * _cosine(context.layer, context.layers, BLOCK_DECAY)), 1)
        return context.is_token[:, 0].sum(-1) - self._block(context)[:, 0].any(-1) * (BLOCK - stay)

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """All attention of generated tokens so far, the same for all heads."""
        (_, weights), *_ = context.weights()
        return context.accumulated + weights.sum(3).mean((1, 2))[:, None]

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """All but the block."""
        return context.is_token & ~self._block(context)


def _cosine(layer: int, layers: int, decay: float) -> float:
    return (1 - decay) * (1 + cos(pi * layer / layers)) / 2 + decay


@lru_cache
def _solve(tokens: int, layers: int, recent: int, fraction: float) -> tuple[int, ...]:
    """The lengths whose mean over the layers is as near to `fraction` of the tokens as it can be, from below."""
    minimum = min(MINIMUM, int(fraction * tokens / 4))

    def lengths(strength: float) -> tuple[int, ...]:  # 0 prunes nothing, 1 is a decay to 0, 2 prunes all it can
        decay, power = max(1 - strength, 0.0), 1 / max(2 - strength, 1e-6) if strength > 1 else 1.0
        older, found = tokens - recent, [tokens]
        for layer in range(layers):
            stay = int(older * _cosine(layer, layers, decay) ** power)
            older = max(stay, min(older, minimum))
            found.append(recent + older)
        return tuple(found)

    if fraction == 1.0:
        return lengths(0.0)
    return lengths(_last_that(lambda strength: sum(lengths(strength)[:layers]) <= fraction * tokens * layers, 2.0, 0.0))


WIDTH = 8
"""Features of the one head that stands for all: heads that keep equally many tokens need no more."""


@torch.no_grad()
def kept_ratio(eviction: Eviction, layers: int, tokens: int) -> float:
    """Keys and values that the method's cache keeps of one prompt, over all of them.

    Random queries, keys and values go through the cache that the method uses in any model, layer by layer. The layers'
    outputs are not computed.

    Args:
        eviction: a method that keeps equally many tokens in all heads of a layer.
        layers: of the model.
        tokens: of the prompt, read in one forward pass.
    """
    cache, generator = EvictingCache(eviction, ["full_attention"] * layers), torch.Generator().manual_seed(0)
    count = torch.tensor([tokens])
    arrival = Arrival(torch.arange(tokens).int()[None], tokens=count, read_tokens=count, generated=0 * count)
    for layer in cache.layers:
        query, key, value = torch.randn(3, 1, 1, tokens, WIDTH, generator=generator)
        for _ in layer.arrive(query[:, None], key, value, arrival, WIDTH**-0.5):
            pass
    held = [tensor for layer in cache.layers for kind, tensor in layer.held_tensors() if kind in {"key", "value"}]
    return sum(tensor.numel() for tensor in held) / (layers * 2 * tokens * WIDTH)


def pyramidinfer_rows(lengths: Sequence[int]) -> pd.DataFrame:
    """The rows of pyramidinfer.csv, in the paper's setting (Appendix B): model ("llama2-7b"), method ("pyramidinfer"),
    length, ratio, source ("counted").
    """
    ratios = [kept_ratio(AS_PRINTED, LLAMA2_7B_LAYERS, length) for length in lengths]
    return pd.DataFrame(
        {"model": "llama2-7b", "method": "pyramidinfer", "length": lengths, "ratio": ratios, "source": "counted"}
    )
