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

    The prompt's end judges with more knowledge than in the original. There a chunk passes all layers before the next
    one is read. So the judging instruction has read only the tokens kept from earlier chunks. Here all chunks pass a
    layer before any enters the next one. So from the second layer on, the prompt's end has also read the tokens kept
    from later chunks when it judges an early one. In a prompt of one chunk both are the same. Tokens before the end
    attend to the tokens that it chose. So only the last logits of a prompt are those of a text read in order.

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
