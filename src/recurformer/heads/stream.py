"""Watch a model's attention weights pass by, a block of query rows at a time.

Beside the model's own attention (`recurformer.heads.interface`) every layer's weights are recomputed for `ROWS` queries
at a time and shown to an observer. No (B, H, L, L) tensor exists, of no layer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.heads.interface import listening

ROWS = 128  # query rows whose weights exist at the same time


@dataclass(frozen=True)
class AttentionBlock:
    """The attention weights of some queries of one layer.

    Attributes:
        layer: index of the decoder layer.
        heads: the model's own (original) indices of the query heads, (H,), in the order of the tensors below.
        start: position in the batch's rows of the first query.
        weights: softmax weights (B, H, queries, keys) in float32 or better; keys are positions 0 .. start + queries -
            1. Rows of padding queries and columns of padding keys are zero. The observer may overwrite them.
        values: value states (B, H, L, head_dim), repeated to the query heads.
        tokens: which positions are tokens and not padding, (B, L) bool.
        first: position of each sample's first token, (B,).
        samples: indices of the batch's samples in the whole input, (B,).
    """

    layer: int
    heads: Tensor
    start: int
    weights: Tensor
    values: Tensor
    tokens: Tensor
    first: Tensor
    samples: Tensor

    @property
    def stop(self) -> int:
        """Position behind the last query, and the number of keys."""
        return self.start + self.weights.shape[2]


class AttentionObserver(Protocol):
    """What `watch_attention` shows its blocks to."""

    def __call__(self, block: AttentionBlock) -> None:
        """Take what is needed from a block; its tensors are not to be kept."""


@dataclass
class _Watch:
    """Listens to one forward pass and shows its weights to the observer, block by block."""

    observer: AttentionObserver
    config: Any
    tokens: Tensor
    samples: Tensor
    layers_seen: set[int]

    def __post_init__(self) -> None:
        self.first = self.tokens.int().argmax(1)
        self.padded = not bool(self.tokens.all())

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
    ) -> None:
        heads = retained_heads(self.config, layer)
        if query.shape[1] != len(heads):
            raise ValueError(f"layer {layer} attends with {query.shape[1]} query heads, its config says {len(heads)}")
        heads_tensor = torch.tensor(heads, device=query.device)
        self.layers_seen.add(layer)
        for start, weights in attention_rows(query, key, mask, scaling):
            if self.padded:
                weights.mul_(self.tokens[:, None, start : start + weights.shape[2], None])
            self.observer(
                AttentionBlock(layer, heads_tensor, start, weights, value, self.tokens, self.first, self.samples)
            )


def retained_heads(config: Any, layer: int) -> list[int]:
    """Query heads of `layer` that still attend, by their original index: all of them unless the model was converted."""
    replaced = set((getattr(config, "recurrent_heads", None) or {layer: ()})[layer])
    return [head for head in range(config.num_attention_heads) if head not in replaced]


def attention_rows(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Iterator[tuple[int, Tensor]]:
    """Causal softmax weights, `ROWS` queries at a time.

    Args:
        query: (B, H, L, D).
        key: (B, H, L, D), repeated to the query heads.
        mask: which keys a query may see, (B or 1, 1, L, L) bool; None means all up to the query's own position.
        scaling: factor of the scores before the softmax.

    Yields:
        (start, weights): weights (B, H, queries, start + queries); rows that may see no key are zero.
    """
    length = query.shape[2]
    dtype = torch.promote_types(query.dtype, torch.float32)
    positions = torch.arange(length, device=query.device)
    for start in range(0, length, ROWS):
        stop = min(start + ROWS, length)
        scores = (query[:, :, start:stop] @ key[:, :, :stop].transpose(-1, -2)).to(dtype).mul_(scaling)
        visible = positions[start:stop, None] >= positions[None, :stop]
        if mask is not None:
            visible = visible & mask[:, :, start:stop, :stop]
        weights = scores.masked_fill_(~visible, float("-inf")).softmax(-1)
        if mask is not None:
            weights.masked_fill_(~visible, 0.0)  # a row without keys is NaN until here
        yield start, weights


def check_batch(input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Return which positions are tokens, (samples, L) bool.

    Raises:
        ValueError: the input is empty or not (samples, tokens), the mask has another shape, or padding stands between
            tokens.
    """
    if input_ids.dim() != 2 or input_ids.numel() == 0:
        raise ValueError(
            f"input_ids must be (samples, tokens) with at least one of each, got shape {tuple(input_ids.shape)}"
        )
    if attention_mask is None:
        return torch.ones_like(input_ids, dtype=torch.bool)
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}, input_ids {tuple(input_ids.shape)}: must agree"
        )
    tokens = attention_mask.bool()
    edges = (tokens.int().diff(dim=1) != 0).sum(1)
    wrong = ~tokens.any(1) | (edges > 2) | ((edges == 2) & tokens[:, 0])
    if wrong.any():
        sample = int(wrong.nonzero()[0])
        raise ValueError(
            f"attention_mask of sample {sample}: the tokens must be one unbroken run, at least one token long"
        )
    return tokens


@torch.no_grad()
def watch_attention(
    model: PreTrainedModel,
    input_ids: Tensor,
    observer: AttentionObserver,
    attention_mask: Tensor | None = None,
    batch_size: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Run the model without its language-model head over all samples and show every attention layer's weights to
    `observer`.

    The model's attention implementation and train mode are as before afterwards, also after an error. Padding may be
    on the left or on the right; positions are counted from the first token, so that padding changes nothing.

    Args:
        model: causal language model whose attention goes through transformers' attention interface; converted models
            too, of which only the retained heads are shown.
        input_ids: (samples, L) token ids.
        observer: called with an `AttentionBlock` for every layer and block of queries.
        attention_mask: (samples, L), 1 for tokens and 0 for padding; None means no padding.
        batch_size: samples in one forward pass.
        progress: called with (samples done, samples) after each batch.

    Raises:
        ValueError: bad input (see `check_batch`), batch_size below 1, or the model does not use the attention
            interface.
    """
    tokens = check_batch(input_ids, attention_mask)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    samples, device = len(input_ids), model.device
    seen: set[int] = set()
    with listening(model):
        for start in range(0, samples, batch_size):
            rows = slice(start, min(start + batch_size, samples))
            batch_tokens = tokens[rows].to(device)
            watch = _Watch(observer, model.config, batch_tokens, torch.arange(rows.start, rows.stop), seen)
            padding: dict[str, Tensor] = {}
            if watch.padded:
                padding["attention_mask"] = batch_tokens.long()
                padding["position_ids"] = (batch_tokens.long().cumsum(1) - 1).clamp(min=0)
            model.base_model(input_ids[rows].to(device), use_cache=False, attention_listener=watch, **padding)
            if progress is not None:
                progress(rows.stop, samples)
    attending = [layer for layer in range(model.config.num_hidden_layers) if retained_heads(model.config, layer)]
    if attending and not seen:
        raise ValueError(f"{type(model).__name__} does not attend through transformers' attention interface")
