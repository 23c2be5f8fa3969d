"""RazorAttention: retrieval heads keep everything, the others little and a mean of the rest (arXiv 2407.15891)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.baselines.context import Context
from recurformer.baselines.eviction import Eviction, budgeted
from recurformer.heads.probes import Repeated
from recurformer.heads.scores import echo_scores, induction_scores

PERIOD, REPEATS = 64, 4  # of the random tokens that the heads of a model of text are judged on
ECHO_HEADS = 1 / 15  # share of the retrieval heads that are chosen by their echo score: the paper's 1 % of 15 %
LOCAL = 0.2  # share of the tokens that the other heads keep; half the budget at most


@dataclass(frozen=True)
class RazorAttention(Eviction):
    """Key-value heads that look back at earlier occurrences keep all tokens; the others keep the first and the last.

    The dropped tokens live on as one, the mean of their keys and values, that weighs as much as all of them.
    With a share b of the cache, L = min(0.2, b/2) of the tokens stay in the other heads, and as many heads keep
    everything as the budget then allows; rounding to whole heads is made up for by L.

    Attributes:
        whole: for each layer, the key-value heads that keep everything; none where it is empty.
        local: share of the tokens that the others keep.
        sinks: first tokens that stay; half of the kept tokens at most.
    """

    whole: tuple[tuple[int, ...], ...] = ()
    local: float = LOCAL
    sinks: int = 4

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
        share = count / (layers * kv_heads)
        return cls(budget, chosen, (budget - share) / (1 - share) if share < 1 else 1.0)

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

    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """The newer, the more."""
        return context.positions.float()

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """The sinks."""
        return context.first((kept // 2).clamp(max=self.sinks))


def any_tokens(vocabulary: int, seed: int = 0) -> Repeated:
    """One text of repeated random tokens; of a model's few special tokens it will rarely have any."""
    order = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(seed))[:PERIOD]
    return Repeated(order.repeat(REPEATS)[None], len(order))


def look_back(model: PreTrainedModel, repeated: Repeated) -> tuple[Tensor, Tensor]:
    """Echo and induction scores of the KV heads on repeated random tokens, each that of its highest query head.

    Returns:
        echo, induction (layers, KV heads); see `recurformer.heads.scores`, whose signs are the opposite.
    """
    kv_heads = model.config.num_key_value_heads
    echo, induction = (
        (-scores(model, *repeated)).unflatten(1, (kv_heads, -1)).amax(2) for scores in (echo_scores, induction_scores)
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
