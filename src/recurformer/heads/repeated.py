"""Attention to what was there before, on repeated random tokens: RazorAttention's echo and induction heads.

Where the same random tokens stand several times one behind the other, an echo head attends from a token to its earlier
occurrences, an induction head to the tokens behind them (arXiv 2407.15891). No text is needed.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.heads.run import Progress
from recurformer.heads.stream import AttentionBlock, watch_attention


class _Shares:
    """Mean attention weight at some distances between query and key, of the queries behind the first period.

    They lead to the keys `shift` tokens behind the earlier occurrences of the query's own token.
    """

    def __init__(self, samples: int, layers: int, heads: int, period: int, shift: int):
        self.shares = torch.full((samples, layers, heads), float("nan"), dtype=torch.float64)
        self.period, self.shift = period, shift

    def __call__(self, block: AttentionBlock) -> None:
        queries = torch.arange(block.start, block.stop, device=block.weights.device)[:, None]
        earlier = torch.arange(block.stop, device=queries.device) - self.shift  # before the first key there is none
        distance = queries - earlier
        looked_for = (distance % self.period == 0) & (distance > 0) & (earlier >= 0) & (queries >= self.period)
        place = block.inputs.place
        sums = (block.weights * looked_for).sum((-1, -2), dtype=torch.float64)
        before = self.shares[place] if block.start else 0.0
        self.shares[place] = before + sums.cpu() / (block.inputs.query.shape[2] - self.period)


def _share(model: PreTrainedModel, input_ids: Tensor, period: int, shift: int, progress: Progress) -> Tensor:
    samples, length = input_ids.shape
    if not 2 <= period < length:
        raise ValueError(f"period={period} must be at least 2 and below the {length} tokens of a sample")
    config = model.config
    shares = _Shares(samples, config.num_hidden_layers, config.num_attention_heads, period, shift)
    watch_attention(model, input_ids, shares, progress=progress)
    return shares.shares.mean(0)


def echo_scores(model: PreTrainedModel, input_ids: Tensor, period: int, progress: Progress = None) -> Tensor:
    """Minus the share of attention from a token to the same token's earlier occurrences: (layers, heads), float64.

    Args:
        model: see `watch_attention`.
        input_ids: (samples, L): different tokens, repeated every `period` tokens. Queries of the first period do not
            count.
        period: tokens.
        progress: called with (samples done, samples).

    Raises:
        ValueError: a period below 2, or samples that do not repeat it.
    """
    return -_share(model, input_ids, period, 0, progress)


def induction_scores(model: PreTrainedModel, input_ids: Tensor, period: int, progress: Progress = None) -> Tensor:
    """Minus the share of attention from a token to those behind its earlier occurrences; else as `echo_scores`."""
    return -_share(model, input_ids, period, 1, progress)
