"""The check that a cache that someone hands in fits a converted model."""

from typing import Any

from transformers import PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from .layout import SLIDING


def kind(layer: Any) -> str:
    """Return the type of a cache's layer, in the words of `config.layer_types`."""
    if not isinstance(layer, LinearAttentionCacheLayerMixin):
        return SLIDING if getattr(layer, "is_sliding", False) else "full_attention"
    return "hybrid" if isinstance(layer, CacheLayerMixin) else "linear_attention"


def check_cache(cache: Any, config: PreTrainedConfig) -> None:
    """Check that a cache has the layers that the model keeps its keys and states in.

    Raises:
        ValueError: it has not.
    """
    kinds, needed = [kind(layer) for layer in getattr(cache, "layers", ())], config.layer_types
    if kinds != needed:
        pairs = zip(kinds, needed, strict=False)
        wrong = next((index for index, pair in enumerate(pairs) if len(set(pair)) > 1), min(len(kinds), len(needed)))
        actual, expected = (each[wrong] if wrong < len(each) else "missing" for each in (kinds, needed))
        raise ValueError(
            f"past_key_values: layer {wrong} of the {type(cache).__name__} is {actual}, the model's is {expected}; make"
            " it by DynamicCache(config=model.config) or StaticCache(config=model.config, max_cache_len=...)"
        )
