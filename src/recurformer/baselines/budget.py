"""The budget with which an eviction method holds as much as a converted model does."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from recurformer.measure.cache import count_cache, meta_twin
from recurformer.model.convert import convert


def matching_budget(model: PreTrainedModel, heads: Sequence[Sequence[int]], length: int, **mamba: Any) -> float:
    """Return the share of the model's cache that it takes after conversion, at most 1.0: recurrent states count too.

    Args:
        model: the unconverted model; only its shape and type matter.
        heads: for each layer, the heads to replace; see `recurformer.select_heads`.
        length: tokens in the cache.
        **mamba: sizes of the Mamba blocks; see `recurformer.convert`.
    """
    base = meta_twin(model)
    converted = convert(base, heads, **mamba)
    return min(float(count_cache(converted, length).bytes.sum() / count_cache(base, length).bytes.sum()), 1.0)
