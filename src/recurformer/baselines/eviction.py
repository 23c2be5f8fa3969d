"""The interface of the eviction baselines: the choice of the tokens that a layer's cache keeps."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.baselines.context import Context
from recurformer.heads.probes import Repeated


@dataclass(frozen=True)
class Eviction(ABC):
    """One way to choose the tokens that stay: those that are protected, then the most important ones.

    Attributes:
        budget: of the cache, on average over layers and heads: a share (0, 1] of the tokens seen so far, or a number of
            tokens.

    Raises:
        ValueError: a budget that is neither.
    """

    budget: float | int

    accumulates: ClassVar[bool] = False  # needs the last `importance` of the tokens that stayed
    compensates: ClassVar[bool] = False  # one of the kept tokens is the mean of the dropped ones
    prunes_states: ClassVar[bool] = False  # of tokens read at once, dropped ones go no deeper; cached ones stay
    prompt_only: ClassVar[bool] = False  # only tokens that are read at once are evicted; generated ones stay
    chunk: ClassVar[int | None] = None  # tokens that are read before the first eviction; None: all of a forward pass

    def __post_init__(self) -> None:
        whole = isinstance(self.budget, int) and not isinstance(self.budget, bool) and self.budget >= 1
        share = isinstance(self.budget, float) and 0 < self.budget <= 1
        if not (whole or share):
            raise ValueError(
                f"budget={self.budget!r} must be a fraction above 0 up to 1.0, or a whole number of tokens from 1 on"
            )

    @classmethod
    def for_model(cls, model: PreTrainedModel, budget: float | int, repeated: Repeated | None = None) -> "Eviction":
        """Return the method with the facts about `model` that it needs, found by `repeated` tokens if it reads any."""
        return cls(budget)

    @property
    def in_decoding(self) -> "Eviction | None":
        """Eviction after each generated token; None: nothing is evicted then."""
        return None if self.prompt_only else self

    def share(self, tokens: int) -> float:
        """Return the budget as a share of so many tokens."""
        return self.budget if isinstance(self.budget, float) else min(self.budget / max(tokens, 1), 1.0)

    def head_groups(self, layer: int, kv_heads: int) -> list[list[int]]:
        """The key-value heads of a layer, those together that keep equally many tokens."""
        return [list(range(kv_heads))]

    def kept(self, context: Context) -> Tensor:
        """Number of tokens of each sample that these heads keep, (B,)."""
        return budgeted(self.budget, context.tokens)

    @abstractmethod
    def importance(self, context: Context, kept: Tensor) -> Tensor:
        """Importance of each key, (B, h or 1, n)."""

    def protected(self, context: Context, kept: Tensor) -> Tensor:
        """Keys that stay regardless of their importance, (B, h, n) bool; at most `kept` of a sample."""
        return torch.zeros_like(context.is_token)


def budgeted(budget: float | int, tokens: Tensor) -> Tensor:
    """Number of `tokens` (B,) that a budget keeps: at least one if there is any."""
    kept = (tokens.double() * budget).round().long() if isinstance(budget, float) else torch.full_like(tokens, budget)
    return torch.minimum(kept.clamp(min=1), tokens)


def judging_window(context: Context, kept: Tensor, size: int) -> Tensor:
    """Number of last tokens that judge the others, (B,): `size`, at most half of the kept and all read ones."""
    return (kept // 2).clamp(min=1, max=size).minimum(context.read_tokens)
