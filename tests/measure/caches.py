"""A stock cache that really forgets, for tests of what evaluations do with a given cache."""

from transformers import Cache
from transformers.cache_utils import DynamicSlidingWindowLayer


def sliding_cache(model, kept: int) -> Cache:
    """Every layer keeps the last `kept` tokens."""
    layers = [DynamicSlidingWindowLayer(sliding_window=kept + 1) for _ in range(model.config.num_hidden_layers)]
    return Cache(layers=layers)
