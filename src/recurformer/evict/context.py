"""The interface of eviction methods: what they see of a layer whose cache holds only some tokens, and what they say."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from recurformer.heads.attention import ROWS
from recurformer.heads.probes import Repeated

PADDING = -1


def token_counts(positions: Tensor) -> Tensor:
    """Number of tokens that each key stands for; see `Context.positions`."""
    return torch.where(positions >= 0, 1, PADDING - positions)


@dataclass(frozen=True)
class Arrival:
    """The tokens of one forward pass that come to a layer.

    Attributes:
        positions: of each of the q tokens, (B, q); see `Context.positions`.
        tokens: tokens that each sample has had so far, (B,), those of this forward pass included, padding not.
        read_tokens: tokens of each sample in this forward pass, (B,), also those that do not come to the layer.
        generated: tokens of each sample since the last forward pass over several, (B,); 0 while they are.
    """

    positions: Tensor
    tokens: Tensor
    read_tokens: Tensor
    generated: Tensor


@dataclass(frozen=True)
class Context:
    """Some key-value heads of one layer in one forward pass: the tokens that they hold, then the new ones.

    Attributes:
        layer: index of the decoder layer.
        layers: number of layers of the model.
        heads: indices of these key-value heads, h of them, each of which serves G query heads.
        tokens: tokens that each sample has had so far, (B,); see `Arrival`.
        read_tokens: tokens of each sample in this forward pass, (B,); likewise.
        generated: tokens of each sample since the last forward pass over several, (B,); likewise.
        queries: of the q new tokens, rotated, (B, h, G, q, D).
        final: of all tokens of this forward pass, (B, h, G, at least q, D); the new ones may be only the first of them.
        keys: (B, h, n, D), rotated; the last q are the new tokens'.
        values: likewise.
        positions: of each of the n keys, (B, h, n): the token's place in its sample, counted without padding. Below 0
            it is -1 - the number of tokens that the key stands for: -1 is padding, -1 - N the mean of N tokens.
        scores: that the method has accumulated for each key, (B, h, n); 0 for the new ones. None: no scores.
        scaling: factor of the attention scores before the softmax.
    """

    layer: int
    layers: int
    heads: list[int]
    tokens: Tensor
    read_tokens: Tensor
    generated: Tensor
    queries: Tensor
    final: Tensor
    keys: Tensor
    values: Tensor
    positions: Tensor
    scores: Tensor | None
    scaling: float

    @property
    def is_token(self) -> Tensor:
        """Keys that are tokens, neither padding nor means, (B, h, n)."""
        return self.positions >= 0

    @property
    def accumulated(self) -> Tensor:
        """The scores, 0 where there are none."""
        return torch.zeros_like(self.positions, dtype=torch.float32) if self.scores is None else self.scores

    def first(self, count: int | Tensor) -> Tensor:
        """The first `count` (or as many as (B,) says) tokens of each sample that are here, (B, h, n) bool."""
        return self.is_token & (self.is_token.cumsum(-1) <= _per_sample(count))

    def last(self, count: int | Tensor) -> Tensor:
        """Likewise the last tokens."""
        return self.is_token & (self.is_token.flip(-1).cumsum(-1).flip(-1) <= _per_sample(count))

    def weights(self, last: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """Softmax weights of the last new tokens (all of them by default), `ROWS` queries at a time.

        Yields:
            (start, weights): index of the first query among the new tokens; weights (B, h, G, queries, n) in float32
            or better. Rows of padding are zero.
        """
        new, cached = self.queries.shape[3], self.keys.shape[2] - self.queries.shape[3]
        places = torch.arange(self.keys.shape[2], device=self.keys.device)
        for start in range(max(new - last, 0) if last is not None else 0, new, ROWS):
            stop = min(start + ROWS, new)
            later = places > places[cached + start : cached + stop, None]
            padding = self.positions[:, :, None, cached + start : cached + stop, None] == PADDING
            weights = self._softmax(self.queries[:, :, :, start:stop], later)
            yield start, weights.masked_fill(padding, 0.0)  # a row that sees nothing is NaN until here

    def _softmax(self, queries: Tensor, hidden: Tensor | None) -> Tensor:
        dtype = torch.promote_types(queries.dtype, torch.float32)
        scores = (queries.flatten(2, 3) @ self.keys.transpose(-1, -2)).unflatten(2, queries.shape[2:4])
        # a key that stands for N tokens weighs N times as much as one; padding stands for none
        bias = token_counts(self.positions).to(dtype).log()[:, :, None, None]
        scores = scores.to(dtype).mul_(self.scaling).add_(bias)
        if hidden is not None:
            scores = scores.masked_fill_(hidden, float("-inf"))
        return scores.softmax(-1)

    def attend(self) -> Tensor:
        """Outputs of the new tokens, (B, h, G, q, D)."""
        if self.keys.shape[2] == self.queries.shape[3] and bool(self.is_token.all()):  # a prompt without padding
            rows = F.scaled_dot_product_attention(
                self.queries.flatten(1, 2), self.keys, self.values, is_causal=True, scale=self.scaling, enable_gqa=True
            )
            return rows.unflatten(1, self.queries.shape[1:3])
        outputs = []
        for _, weights in self.weights():
            rows = weights.to(self.values.dtype).flatten(2, 3) @ self.values
            outputs.append(rows.unflatten(2, weights.shape[2:4]))
        return torch.cat(outputs, 3)

    def recent_attention(self, window: Tensor, newest: float = 1.0) -> Tensor:
        """Mean attention that each key gets from the last `window` (B,) new tokens, (B, h, G, n).

        The queries' weights in the mean rise evenly from 1 to `newest`.
        """
        new, total = self.queries.shape[3], torch.zeros((), device=window.device)
        for start, weights in self.weights(int(window.max())):
            age = new - 1 - torch.arange(start, start + weights.shape[3], device=window.device)
            rank = 1 - age / (window[:, None] - 1).clamp(min=1)
            counted = (1 + (newest - 1) * rank) * (age < window[:, None])
            total = total + torch.einsum("bhgqn,bq->bhgn", weights, counted.to(weights.dtype))
        return total / window.clamp(min=1)[:, None, None, None]

    def final_attention(self, window: Tensor) -> Tensor:
        """Mean attention that each key gets from the forward pass's last `window` (B,) tokens, (B, h, G, n).

        They see every key, also those that are newer than they.
        """
        queries = self.final[:, :, :, -int(window.max()) :]
        age = torch.arange(queries.shape[3], device=window.device).flip(0)
        counted = (age < window[:, None]) / window.clamp(min=1)[:, None]
        seen = self.is_token.any(-1)[:, :, None, None, None]  # a sample that is all padding so far
        weights = self._softmax(queries, None).masked_fill(~seen, 0.0)
        return torch.einsum("bhgqn,bq->bhgn", weights, counted.to(weights.dtype))


def _per_sample(count: int | Tensor) -> int | Tensor:
    return count[:, None, None] if isinstance(count, Tensor) else count


@dataclass(frozen=True)
class Eviction(ABC):
    """One way to choose the tokens that stay: those that are protected, then the most important ones.

    Attributes:
        budget: of the cache, on average over layers and heads: a fraction (0, 1] of the tokens seen, or their number.

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
        fraction = isinstance(self.budget, float) and 0 < self.budget <= 1
        if not (whole or fraction):
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

    def fraction(self, tokens: int) -> float:
        """Return the budget as a fraction of so many tokens."""
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
