"""Eviction from the retained heads of a converted model, beside the states of the mixers."""

from functools import cache

import pytest
import torch
from transformers import DynamicCache

from recurformer import convert
from recurformer.evict import EVICTIONS, evicting, make_cache, matching_budget
from recurformer.measure.cache import cache_bytes, count_cache
from recurformer.model.mixers import MIXERS
from tests.evict.twin import read_in_pieces
from tests.model.tiny_models import ALL, PAD, difference, make_backbone, tokens

HEADS = {"mixed": [[0, 1, 2], [], ALL], "attention_free_first": [ALL, [3, 4, 5], []]}
ABLE = [name for name in EVICTIONS if name not in {"pyramidinfer_official", "razor_attention"}]
PIECES = (14, 1, 1, 4, 1)


@cache
def converted(heads="mixed", mixer="mamba"):
    model = convert(make_backbone("qwen2_gqa"), HEADS[heads], mixer)
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if f".{mixer}." in name and not name.endswith("A_log"):
            weight.data.normal_(0, 0.3)
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("heads", HEADS)
def test_a_cache_that_evicts_nothing_gives_the_models_own_logits(heads, mixer):
    model = converted(heads, mixer)
    pieces = tokens(2, sum(PIECES)).split(PIECES, 1)
    padded = torch.ones(2, sum(PIECES), dtype=torch.long)
    padded[1, :5] = 0
    pieces = (pieces[0].masked_fill(padded[:, :14] == 0, PAD), *pieces[1:])
    real = padded.split(PIECES, 1)
    own = read_in_pieces(model, DynamicCache(config=model.config), pieces, padded)
    found = read_in_pieces(model, make_cache(model, "h2o", 1.0), pieces, padded)
    for ours, expected, tokens_of in zip(found, own, real, strict=True):
        assert difference(ours[tokens_of.bool()], expected[tokens_of.bool()]) < 1e-4


@pytest.mark.parametrize("method", ABLE)
def test_retained_heads_hold_their_budget_and_the_states_stay(method):
    model, ids = converted(), tokens(2, 24)
    evicted = evicting(model)
    with torch.no_grad():
        caches = {budget: make_cache(model, method, budget) for budget in (1.0, 0.5)}
        logits = {budget: evicted(ids, past_key_values=cache).logits for budget, cache in caches.items()}
    held = {budget: cache_bytes(cache).groupby("kind").bytes.sum() for budget, cache in caches.items()}
    for kind in ("conv_state", "recurrent_state"):
        assert held[0.5][kind] == held[1.0][kind] > 0
    assert held[0.5]["key"] < 0.8 * held[1.0]["key"]
    states = [cache.layers[0].recurrent_states[0] for cache in caches.values()]
    assert torch.equal(*states), "the first layer's states see the same tokens"
    assert all(found.isfinite().all() for found in logits.values())


def test_beams_take_their_states_along():
    model, ids = converted(), tokens(1, 12)
    cache = make_cache(model, "h2o", 1.0)
    found = evicting(model).generate(ids, past_key_values=cache, num_beams=3, max_new_tokens=6)
    assert torch.equal(found, model.generate(ids, num_beams=3, max_new_tokens=6))


def test_what_cannot_be_done_is_refused():
    base = make_backbone("qwen2_gqa")
    with pytest.raises(ValueError, match="all of this model's are replaced"):
        make_cache(convert(base, [ALL, ALL, ALL]), "h2o", 0.5)
    with pytest.raises(ValueError, match="needs query groups of one size"):
        make_cache(convert(base, [[0], [1, 2], []]), "h2o", 0.5)
    for method in set(EVICTIONS) - set(ABLE):
        with pytest.raises(ValueError, match="this one is converted"):
            make_cache(converted(), method, 0.5)


def test_matching_budget_is_what_the_converted_model_holds():
    base, heads = make_backbone("llama_mha"), [[0, 1, 2], [], [3]]
    sizes = {"d_state": 1, "d_conv": 2, "expand": 1}
    budget = matching_budget(base, heads, 200, **sizes)
    whole, less = (count_cache(model, 200).bytes.sum() for model in (base, convert(base, heads, **sizes)))
    assert budget == less / whole
    evicted = make_cache(base, "streaming_llm", budget)
    evicting(base)(tokens(1, 200), past_key_values=evicted)
    held = cache_bytes(evicted)
    assert held[held.kind.isin(["key", "value"])].bytes.sum() == pytest.approx(less, rel=0.01)
    assert matching_budget(base, [list(range(6))] * 3, 1) == 1.0
