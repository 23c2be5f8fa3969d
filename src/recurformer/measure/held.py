"""What a cache really holds, as a share of the full cache that the original model would have after the same tokens."""

from collections.abc import Sequence

import torch
from transformers import Cache, PreTrainedConfig

from recurformer.measure.cache import cache_bytes


def held_bytes(cache: Cache, tokens: int) -> float:
    """Bytes for each of the `tokens` (those of all sequences together) that the cache has seen."""
    return float(cache_bytes(cache).bytes.sum()) / tokens


def full_bytes(original: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Bytes that a full cache of the original model holds for each token."""
    size = getattr(original, "head_dim", None) or original.hidden_size // original.num_attention_heads
    return original.num_hidden_layers * 2 * original.num_key_value_heads * size * dtype.itemsize


def held_ratio(held: Sequence[float], original: PreTrainedConfig, dtype: torch.dtype) -> float:
    """Mean of `held_bytes` over the bytes of the original's full cache.

    Args:
        held: one value a batch.
        original: of the model before anything was changed.
        dtype: of the measured model, so that keeping the same weights in fewer bits does not count as a smaller cache.
    """
    return sum(held) / len(held) / full_bytes(original, dtype)
