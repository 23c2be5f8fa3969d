"""The eviction methods by name. A new one is a class here, a line of `EVICTIONS`, and its name in `study.ablations`."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from recurformer.evict.context import PADDING, Context, Eviction, budgeted, judging_window
from recurformer.evict.pyramidinfer import PyramidInferOfficial, PyramidInferPaper
from recurformer.heads.probes import Repeated
from recurformer.heads.scores import look_back_scores

PERIOD, REPEATS = 64, 4  # of the random tokens that the heads of a model of text are judged on
ECHO_HEADS = 1 / 15  # fraction of the retrieval heads that are chosen by their echo score: the paper's 1 % of 15 %
LOCAL = 0.2  # fraction of the tokens that the other heads keep; half the budget at most


@dataclass(frozen=True)
class StreamingLLM(Eviction):
    """StreamingLLM (arXiv 2309.17453): the first tokens, half the budget at most, and the last ones.

    Keys keep the rotation of the place where they were read; the original counts places within the cache.

    Attributes:
        sinks: first tokens that stay.
    """

    sinks: int = 4

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """The newer, the more."""
        return context.positions.float()

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The sinks."""
        return context.first((kept // 2).clamp(max=self.sinks))


@dataclass(frozen=True)
class RazorAttention(StreamingLLM):
    """Key-value heads that look back at earlier occurrences keep all tokens; the others keep those of StreamingLLM.

    RazorAttention (arXiv 2407.15891). The dropped tokens live on as one, the mean of their keys and values, that
    weighs as much as all of them.
    With a fraction b of the cache, L = min(0.2, b/2) of the tokens stay in the other heads, and as many heads keep
    everything as the budget then allows; rounding to whole heads is made up for by L.

    Attributes:
        whole: for each layer, the key-value heads that keep everything; none where it is empty.
        local: fraction of the tokens that the others keep.
    """

    whole: tuple[tuple[int, ...], ...] = ()
    local: float = LOCAL

    compensates: ClassVar[bool] = True

    @classmethod
    def for_model(
        cls, model: PreTrainedModel, budget: float | int, repeated: Repeated | None = None
    ) -> "RazorAttention":
        """Choose the heads by their scores on repeated random tokens; None: any of the vocabulary, as for text.

        Raises:
            ValueError: a budget in tokens, with which the heads that keep everything would break.
        """
        if not isinstance(cls(budget).budget, float):
            raise ValueError(f"budget={budget} of razor_attention must be a fraction: some heads keep every token")
        layers, kv_heads = model.config.num_hidden_layers, model.config.num_key_value_heads
        local = min(LOCAL, budget / 2)
        room = layers * kv_heads * (budget - local) / (1 - local)
        count = layers * kv_heads if budget == 1 else int(round(room, 6))  # of eight 0.5 leaves 3, not 2.9999999
        chosen = retrieval_heads(*look_back(model, repeated or any_tokens(model.config.vocab_size)), count)
        whole = count / (layers * kv_heads)
        return cls(budget, whole=chosen, local=(budget - whole) / (1 - whole) if whole < 1 else 1.0)

    def head_groups(self, layer: int, kv_heads: int) -> list[list[int]]:
        """The heads that keep everything, and the others."""
        whole = list(self.whole[layer]) if self.whole else []
        return [group for group in (whole, [head for head in range(kv_heads) if head not in whole]) if group]

    def kept(self, context: Context) -> Tensor:
        """Everything, or the local tokens but for the one place that the mean of the others takes."""
        if self.whole and set(context.heads) <= set(self.whole[context.layer]):
            return context.tokens
        local = budgeted(self.local, context.tokens)
        return torch.where(context.tokens <= local, local, local - 1)  # the mean of the dropped takes a place


def any_tokens(vocabulary: int) -> Repeated:
    """One text of repeated random tokens; of a model's few special tokens it will rarely have any."""
    order = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(0))[:PERIOD]
    return Repeated(order.repeat(REPEATS)[None], len(order))


def look_back(model: PreTrainedModel, repeated: Repeated) -> tuple[Tensor, Tensor]:
    """Echo and induction scores of the KV heads on repeated random tokens, each that of its highest query head.

    Returns:
        echo, induction (layers, KV heads); see `look_back_scores`, whose signs are the opposite.
    """
    kv_heads = model.config.num_key_value_heads
    echo, induction = (
        (-look_back_scores(model, *repeated, ahead)).unflatten(1, (kv_heads, -1)).amax(2) for ahead in (0, 1)
    )
    return echo, induction


def retrieval_heads(echo: Tensor, induction: Tensor, count: int) -> tuple[tuple[int, ...], ...]:
    """The heads with the highest echo scores, a fifteenth of `count`, then those with the highest induction scores.

    Args:
        echo: (layers, heads).
        induction: likewise.
        count: heads to choose.

    Returns:
        For each layer, the chosen heads in ascending order.
    """
    by_echo = echo.flatten().argsort(descending=True, stable=True).tolist()[: round(count * ECHO_HEADS)]
    by_induction = induction.flatten().argsort(descending=True, stable=True).tolist()
    chosen = [*by_echo, *(head for head in by_induction if head not in by_echo)][:count]
    layers, heads = echo.shape
    return tuple(tuple(sorted(head % heads for head in chosen if head // heads == layer)) for layer in range(layers))


@dataclass(frozen=True)
class H2O(Eviction):
    """H2O (arXiv 2306.14048): the last half of the budget, and of the others those with the largest sum of attention.

    Tokens of one forward pass are judged together, after the pass. Query heads that share keys are averaged.
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


@dataclass(frozen=True)
class Scissorhands(Eviction):
    """Scissorhands (arXiv 2305.17118): the last tokens, and of the others those to which most queries gave more than
    the mean weight of their keys.

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
        """Number of queries so far that gave a token more than their mean."""
        scores, new = context.accumulated, context.queries.shape[3]
        seen = (context.positions != PADDING).cumsum(-1)[:, :, None, -new:, None]  # keys that each query sees
        for start, weights in context.weights(self.history):
            scores = scores + (weights * seen[:, :, :, start : start + weights.shape[3]] > 1).sum((2, 3))
        return scores

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The last tokens."""
        return context.last((kept // 2).clamp(max=self.recent))


@dataclass(frozen=True)
class SnapKV(Eviction):
    """SnapKV (arXiv 2404.14469): the window of last tokens, and of the others those to which the window attends most,
    smoothed over neighbours.

    Only tokens that are read several at a time (the prompt) are evicted: the cache grows with each generated token.
    Window and kernel are those of the paper's section 5.4 (needles and retrieval with Command-R), the mean is the
    code's; the smaller ones of 5.1.1 (16 and 5) and 5.3 (32 and 7) keep but a part of a number written digit by digit.

    Attributes:
        window: last tokens that judge and stay; half the budget at most.
        kernel: neighbours, odd, over which the attention is averaged.
    """

    window: int = 64
    kernel: int = 13

    prompt_only: ClassVar[bool] = True

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """Attention of the window, averaged over neighbours."""
        attention = context.recent_attention(judging_window(context, kept, self.window)).mean(2)
        attention = attention.masked_fill(self.protected(context, kept), 0.0)
        return F.avg_pool1d(attention, self.kernel, stride=1, padding=self.kernel // 2)

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The window."""
        return context.last(judging_window(context, kept, self.window))


@dataclass(frozen=True)
class Citrus(Eviction):
    """CItruS (arXiv 2406.12018): the prompt is read in chunks; after each one stay the tokens that its end and the
    prompt's end attend to most.

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

    prompt_only: ClassVar[bool] = True
    chunk: ClassVar[int | None] = 256

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """Attention of the chunk's end and of the prompt's end, the same for all heads."""
        window = judging_window(context, kept, self.window)
        return (context.recent_attention(window) + context.final_attention(window)).mean((1, 2))[:, None]

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The chunk's end."""
        return context.last(judging_window(context, kept, self.window))


@dataclass(frozen=True)
class BigBird(Eviction):
    """BigBird's sparse pattern (arXiv 2007.14062): the first tokens, the last half of the budget, and of the others
    random ones, other ones in each head.

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
        return lots.gather(-1, context.positions.clamp(min=0).long())

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The first and the last tokens."""
        return context.first((kept // 4).clamp(max=self.sinks)) | context.last(kept - kept // 2)


EVICTIONS: dict[str, type[Eviction]] = {
    "streaming_llm": StreamingLLM,
    "h2o": H2O,
    "snapkv": SnapKV,
    "scissorhands": Scissorhands,
    "pyramidinfer_paper": PyramidInferPaper,
    "pyramidinfer_official": PyramidInferOfficial,
    "razor_attention": RazorAttention,
    "citrus": Citrus,
    "big_bird": BigBird,
}
