"""CItruS: chunked, instruction-aware state eviction (arXiv 2406.12018)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from recurformer.baselines.context import Context
from recurformer.baselines.eviction import Eviction, judging_window


@dataclass(frozen=True)
class Citrus(Eviction):
    """The prompt is read in chunks; after each one stay the tokens that its end and the prompt's end attend to most.

    The prompt's last tokens stand for the instruction. The original has two caches, one for each of the two judges;
    here one cache serves both, and their attention is added. Only tokens that are read several at a time (the prompt)
    are evicted: the cache grows with each generated token.

    The prompt's end judges with more than in the original. There a chunk passes all layers before the next one is read,
    and the instruction has read only what stayed of earlier chunks when it judges. Here all chunks pass a layer before
    any enters the next one. So from the second layer on, the prompt's end has also read what stayed of later chunks
    when it judges an early one. A prompt of one chunk makes no difference. Tokens in front of the end attend to what it
    chose, so of a prompt's logits only the last are those of a text read in order.

    Attributes:
        window: last tokens of a chunk and of the prompt that judge; those of the chunk stay, half the budget at most.
    """

    window: int = 32

    chunk: ClassVar[int | None] = 256

    @property
    def in_decoding(self) -> None:
        """Nothing is evicted."""
        return None

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """Attention of the chunk's end and of the prompt's end, the same for all heads."""
        window = judging_window(context, kept, self.window)
        return (context.recent_attention(window) + context.final_attention(window)).mean((1, 2))[:, None]

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The chunk's end."""
        return context.last(judging_window(context, kept, self.window))
