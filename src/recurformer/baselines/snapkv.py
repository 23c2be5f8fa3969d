"""SnapKV: what the last queries of the prompt look at (arXiv 2404.14469)."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from recurformer.baselines.context import Context
from recurformer.baselines.eviction import Eviction, judging_window


@dataclass(frozen=True)
class SnapKV(Eviction):
    """The window of last tokens, and of the others those to which the window attends most, smoothed over neighbours.

    Only tokens that are read several at a time (the prompt) are evicted: the cache grows with each generated token.
    Window and kernel are those of the paper's section 5.4 (needles, retrieval with Command-R), the mean is the code's.
    The smaller ones of 5.1.1 (16 and 5) and 5.3 (32 and 7) keep but a part of a number written digit by digit.

    Attributes:
        window: last tokens that judge and stay; half the budget at most.
        kernel: neighbours, odd, over which the attention is averaged.
    """

    window: int = 64
    kernel: int = 13

    @property
    def in_decoding(self) -> None:
        """Nothing is evicted."""
        return None

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """Attention of the window, averaged over neighbours."""
        attention = context.recent_attention(judging_window(context, kept, self.window)).mean(2)
        attention = attention.masked_fill(self.protected(context, kept), 0.0)
        return F.avg_pool1d(attention, self.kernel, stride=1, padding=self.kernel // 2)

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The window."""
        return context.last(judging_window(context, kept, self.window))
