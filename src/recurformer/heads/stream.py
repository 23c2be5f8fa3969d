"""Watch a model's attention weights pass by, a block of query rows at a time.

The model attends with these very weights (`recurformer.heads.run`), and an observer sees them `ROWS` queries at a time.
No layer ever has a (B, H, L, L) tensor.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.heads.run import LayerInputs, Progress, run_attention

ROWS = 128  # query rows whose weights exist at the same time


@dataclass(frozen=True)
class AttentionBlock:
    """The attention weights of some queries of one layer.

    Attributes:
        inputs: of the layer's attention.
        start: position of the first query.
        weights: softmax weights (B, H, queries, keys) in float32 or better; keys are positions 0 .. start + queries -
            1. Rows of padding are zero. The observer may overwrite them.
    """

    inputs: LayerInputs
    start: int
    weights: Tensor

    @property
    def stop(self) -> int:
        """Position after the last query, and the number of keys."""
        return self.start + self.weights.shape[2]

    def value_norms(self, order: int) -> Tensor:
        """Norm of every query head's value vector of each key, (B, H, keys), float64."""
        norms = self.inputs.value[:, :, : self.stop].double().norm(p=order, dim=-1)
        return norms.repeat_interleave(self.weights.shape[1] // norms.shape[1], 1)


AttentionObserver = Callable[[AttentionBlock], None]
"""Reads a block; the block's tensors are not to be kept."""


def attend_by_rows(inputs: LayerInputs, observer: AttentionObserver) -> Tensor:
    """Attend with explicit weights and show them to `observer`, block by block; returns (B, L, H, head_dim)."""
    value, (batch, heads, _, _) = inputs.value, inputs.query.shape
    outputs = []
    for start, weights in attention_rows(inputs.query, inputs.key, inputs.mask, inputs.scaling):
        stop = start + weights.shape[2]
        grouped = weights.to(value.dtype).unflatten(1, (value.shape[1], -1)).flatten(2, 3)
        outputs.append((grouped @ value[:, :, :stop]).view(batch, heads, stop - start, -1))
        observer(AttentionBlock(inputs, start, weights.mul_(inputs.tokens[:, None, start:stop, None])))
    return torch.cat(outputs, 2).transpose(1, 2)


def attention_rows(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Iterator[tuple[int, Tensor]]:
    """Causal softmax weights, `ROWS` queries at a time.

    Args:
        query: (B, H, L, D).
        key: (B, key-value heads, L, D).
        mask: whether a query may see a key, (B or 1, 1, L, L) bool; None means all up to the query's own position.
        scaling: factor of the scores before the softmax.

    Yields:
        (start, weights): weights (B, H, queries, start + queries); rows that may see no key are zero.
    """
    batch, heads, length, _ = query.shape
    dtype = torch.promote_types(query.dtype, torch.float32)
    positions = torch.arange(length, device=query.device)
    for start in range(0, length, ROWS):
        stop = min(start + ROWS, length)
        rows = query[:, :, start:stop].unflatten(1, (key.shape[1], -1)).flatten(2, 3)
        scores = (rows @ key[:, :, :stop].transpose(-1, -2)).view(batch, heads, stop - start, stop)
        visible = positions[start:stop, None] >= positions[None, :stop]
        if mask is not None:
            visible = visible & mask[:, :, start:stop, :stop]
        weights = scores.to(dtype).mul_(scaling).masked_fill_(~visible, float("-inf")).softmax(-1)
        if mask is not None:
            weights.masked_fill_(~visible, 0.0)  # a row without keys is NaN until here
        yield start, weights


def watch_attention(
    model: PreTrainedModel,
    input_ids: Tensor,
    observer: AttentionObserver,
    batch_size: int | None = None,
    progress: Progress = None,
) -> None:
    """Run the model over all samples and show every attention layer's weights to `observer`: see `run_attention`."""
    run_attention(
        model, input_ids, lambda inputs: attend_by_rows(inputs, observer), batch_size=batch_size, progress=progress
    )
