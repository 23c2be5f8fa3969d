"""The bytes of a full cache, against caches that models really make, and shares of them."""

import pytest
import torch
from transformers import DynamicCache

from recurformer.backbones import make_random
from recurformer.backbones.shapes import SHAPES, load_shape, meta_model
from recurformer.measure.cache import count_cache, full_bytes, held_bytes, held_ratio


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_full_cache_is_what_the_original_really_holds(shape, dtype):
    counted = count_cache(meta_model(load_shape(shape), dtype), 64, batch_size=3).bytes.sum()
    assert full_bytes(load_shape(shape), dtype) == counted / (3 * 64)


def test_a_head_size_of_its_own_counts():
    model = make_random("llama", hidden_size=32, layers=2, heads=4, kv_heads=1, head_dim=12, vocab_size=16)
    cache = DynamicCache(config=model.config)
    model(torch.zeros(2, 5, dtype=torch.long), past_key_values=cache)
    assert held_bytes(cache, 10) == full_bytes(model.config, torch.float32) == 2 * 2 * 12 * 4
    assert held_ratio([held_bytes(cache, 10), 0.0], model.config, torch.float32) == 0.5
