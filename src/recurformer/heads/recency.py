"""Attend in one layer, and sum the attention on recent tokens, at little more than the cost of attending.

A query's weights sum to 1, so the kernel that attends knows their total already, and only the scores in the band
0 <= i - j <= window are computed a second time. The first token comes last: the kernel attends to all others, and the
mass beyond the first token is a sum of its own. As 1 minus the first token's weight, rounding would swallow it in heads
that attend to little else.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from recurformer.heads.run import LayerInputs
from recurformer.heads.stream import AttentionBlock, attend_by_rows
from recurformer.model.flash import flash_attention, refuses

BLOCK = 64  # queries whose bands are cut from one product
SCORES = 2**19  # scores that exist at the same time, or those of one key-value head if they are more


class Recency(NamedTuple):
    """One layer's attention weights, summed over the queries of each sample in float64.

    Attributes:
        recent: weights at the distances 0 .. window between query and key, (B, H, window + 1).
        total: all weights, (B, H).
    """

    recent: Tensor
    total: Tensor


def attend_and_sum(inputs: LayerInputs, window: int, exclude_first: bool) -> tuple[Tensor, Recency]:
    """Return the layer's output (B, L, H, head_dim), and its recency, with or without the weights on the first token.

    A sliding-window mask, or a device without a kernel for `flash_attention`, leads to explicit weights, which are
    slower.
    """
    query, key, value = (states[:, :, 1:] for states in (inputs.query, inputs.key, inputs.value))
    if inputs.mask is not None or not query.numel() or refuses(query, key, value) is not None:
        return _attend_by_rows(inputs, window, exclude_first)
    output, logsumexp = flash_attention(query, key, value, inputs.scaling)
    return _attend_by_band(inputs, window, exclude_first, output, logsumexp)


def _attend_by_rows(inputs: LayerInputs, window: int, exclude_first: bool) -> tuple[Tensor, Recency]:
    batch, heads, _, _ = inputs.query.shape
    recent = torch.zeros(batch, heads, window + 1, dtype=torch.float64, device=inputs.query.device)
    total = torch.zeros_like(recent[..., 0])

    def add(block: AttentionBlock) -> None:
        if exclude_first:
            block.weights[..., 0] = 0.0
        total.add_(block.weights.sum(-1).sum(-1, dtype=torch.float64))
        reaching = F.pad(block.weights, (max(window - block.start, 0), 0))
        recent.add_(band(reaching, window).sum((2, 3), dtype=torch.float64).flip(-1))

    return attend_by_rows(inputs, add), Recency(recent, total)


def _attend_by_band(
    inputs: LayerInputs, window: int, exclude_first: bool, output: Tensor, logsumexp: Tensor
) -> tuple[Tensor, Recency]:
    """See `attend_and_sum`; `output` and `logsumexp` are those of attention among all tokens but the first.

    N are the key-value heads of all samples, P the queries but the first, rounded up to whole blocks.
    """
    batch, heads, length, _ = inputs.query.shape
    kv_heads, wide = inputs.key.shape[1], torch.promote_types(inputs.query.dtype, torch.float32)
    behind = -(length - 1) % BLOCK
    key = inputs.key.to(wide).mul(inputs.scaling).flatten(0, 1)  # (N, L, D)
    query = inputs.query[:, :, 1:].to(wide).unflatten(1, (kv_heads, -1)).transpose(2, 3)
    query = F.pad(query, (0, 0, 0, 0, 0, behind)).flatten(0, 1)  # (N, P, group, D)
    logsumexp = logsumexp.unflatten(1, (kv_heads, -1)).transpose(2, 3)
    logsumexp = F.pad(logsumexp, (0, 0, 0, behind)).flatten(0, 1)  # (N, P, group)
    padding = ~F.pad(inputs.tokens[:, 1:], (0, behind)).repeat_interleave(kv_heads, 0).unsqueeze(-1)  # (N, P, 1)

    on_first = (query.flatten(1, 2) @ key[:, 0].unsqueeze(-1)).view_as(logsumexp)
    beyond = torch.sigmoid(logsumexp - on_first)  # each query's weight on all tokens but the first
    everything = torch.logaddexp(logsumexp, on_first).masked_fill_(padding, float("inf"))
    recent = _band_mass(query, key[:, 1:], everything, window)
    total = beyond.masked_fill(padding, 0.0).sum(1, dtype=torch.float64)
    if not exclude_first:
        first = (1 - beyond).masked_fill_(padding, 0.0).transpose(1, 2).double()
        first = F.pad(first, (1, 0), value=1.0)  # the first query has no other key
        recent, total = recent + first[..., : window + 1], total + first.sum(-1)

    first_value = inputs.value[:, :, :1].repeat_interleave(heads // kv_heads, 1).transpose(1, 2)  # (B, 1, H, D)
    share = beyond[:, : length - 1].unflatten(0, (batch, kv_heads)).transpose(1, 2).flatten(2).unsqueeze(-1)
    mixed = torch.lerp(first_value.to(wide), output.transpose(1, 2).to(wide), share).to(output.dtype)
    recency = Recency(recent.view(batch, heads, -1), total.view(batch, heads))
    return torch.cat([first_value, mixed], 1), recency


def _band_mass(query: Tensor, key: Tensor, logsumexp: Tensor, window: int) -> Tensor:
    """Attention weights by distance, summed over the queries.

    Args:
        query: (N, P, group, D), P being whole blocks.
        key: (N, L, D), scaled; L is at most P.
        logsumexp: of each query's scores, (N, P, group); infinite for padding.
        window: largest distance.

    Returns:
        float64 (N, group, window + 1).
    """
    count, rows, group, _ = query.shape
    query = query.view(count, rows // BLOCK, BLOCK * group, -1)
    logsumexp = logsumexp.view(count, rows // BLOCK, BLOCK, group, 1)
    bands = F.pad(key, (0, 0, window, rows - key.shape[1])).unfold(1, window + BLOCK, BLOCK)
    # the keys that would stand before the first token
    early = torch.arange(-(-window // BLOCK) * BLOCK, device=key.device).view(-1, BLOCK, 1, 1)
    absent = early + torch.arange(window + 1, device=key.device) < window

    mass = key.new_zeros(count, group, window + 1, dtype=torch.float64)
    step = max(SCORES // (group * rows * (window + BLOCK)), 1)
    for start in range(0, count, step):
        part = slice(start, start + step)
        near = band(query[part] @ bands[part], window, group)
        near[:, : len(absent)].masked_fill_(absent, float("-inf"))
        mass[part] = (near - logsumexp[part]).exp_().sum(2).sum(1, dtype=torch.float64)
    return mass.flip(-1)


def band(scores: Tensor, window: int, group: int = 1) -> Tensor:
    """A view of the scores at the distances window .. 0 between query and key, (..., queries, group, window + 1).

    Args:
        scores: (..., queries * group, keys), contiguous; the last key is the last query's own.
        window: largest distance; there are at least queries + window keys.
        group: rows of each query.
    """
    queries, keys = scores.shape[-2] // group, scores.shape[-1]
    size = (*scores.shape[:-2], queries, group, window + 1)
    stride = (*scores.stride()[:-2], group * keys + 1, keys, 1)
    return scores.as_strided(size, stride, scores.storage_offset() + keys - queries - window)
