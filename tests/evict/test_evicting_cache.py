"""Caches that evict: what every method keeps, pieces, padding, beams and generate(), with and without mixers."""

from functools import cache
from itertools import cycle

import pytest
import torch
from transformers import DynamicCache

from recurformer import convert
from recurformer.evict import EVICTIONS, evicting, make_cache
from recurformer.evict.methods import Citrus
from recurformer.measure.cache import cache_bytes, cache_tensors
from recurformer.measure.language import text_logits
from recurformer.model.mixers import MIXERS
from tests.evict.twin import read_in_pieces, recording, twin_logits
from tests.model.tiny_models import ALL, LAYERS, PAD, PAIRS, difference, make_backbone, tokens

PROMPT, NEW = 23, 5
every_method = pytest.mark.parametrize("method", EVICTIONS)
every_case = pytest.mark.parametrize(
    ("method", "backbone", "budget"),
    [
        (method, backbone, budget)
        for method in EVICTIONS
        for backbone, budget in (("llama_mha", 0.3), ("qwen2_gqa", 0.6), ("qwen2_gqa", 9))
        if method != "razor_attention" or budget < 1  # it takes a fraction
    ],
)
BACKBONE = "qwen2_gqa"

model_of = cache(lambda name: make_backbone(name).requires_grad_(False))


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(Citrus, "chunk", 8)


def pieces_of(batch=2):
    """A prompt, single tokens, several tokens at once, a single token."""
    return tokens(batch, PROMPT + NEW + 4).split([PROMPT, *[1] * (NEW - 2), 4, 1, 1], 1)


def held_slots(evicted, sample=0):
    """For each layer and KV head the tokens held of one sample."""
    return [
        {
            head: [slot for slot in slots[sample].tolist() if slot != -1]
            for group in layer.groups
            for head, slots in zip(group.heads, group.positions.unbind(1), strict=True)
        }
        for layer in evicted.layers
    ]


def kv_bytes(evicted):
    frame = cache_bytes(evicted)
    return int(frame[frame.kind.isin(["key", "value"])].bytes.sum())


@every_method
def test_whole_budget_equals_the_stock_model(method):
    model, pieces, stock = model_of(BACKBONE), pieces_of(), DynamicCache(config=model_of(BACKBONE).config)
    expected = [model(piece, past_key_values=stock).logits for piece in pieces]
    for logits, right in zip(read_in_pieces(model, make_cache(model, method, 1.0), pieces), expected, strict=True):
        assert difference(logits, right) < 1e-5


@pytest.mark.parametrize(("method", "backbone"), zip(cycle(EVICTIONS), dict(PAIRS), strict=False))
def test_every_family_is_evicted_from_or_refused(method, backbone):
    model, pieces = model_of(backbone), pieces_of()
    if "sliding_attention" in getattr(model.config, "layer_types", []):
        with pytest.raises(ValueError, match="layer 1 of this model attends through a sliding window"):
            make_cache(model, method, 0.5)
        return
    whole = read_in_pieces(model, make_cache(model, method, 1.0), pieces)
    stock = DynamicCache(config=model.config)
    for logits, piece in zip(whole, pieces, strict=True):
        assert difference(logits, model(piece, past_key_values=stock).logits) < 1e-5
    part = make_cache(model, method, 0.6)
    with recording() as saw:
        logits = read_in_pieces(model, part, pieces)
    assert difference(logits[-1], whole[-1]) > 1e-3
    assert difference(logits[-1], twin_logits(model, torch.cat(pieces, 1), saw)[:, -1:]) < 1e-5


@every_case
def test_reading_in_pieces_equals_the_slow_twin(method, backbone, budget):
    model, pieces = model_of(backbone), pieces_of()
    with recording() as saw:
        logits = read_in_pieces(model, make_cache(model, method, budget), pieces)
    expected = twin_logits(model, torch.cat(pieces, 1), saw).split([piece.shape[1] for piece in pieces], 1)
    for part, right in zip(logits, expected, strict=True):
        assert difference(part[:, -1], right[:, -1]) < 1e-5  # pruned tokens have no last hidden state


@pytest.mark.parametrize("backbone", ["llama_mha", "llama_gqa_tied"])
def test_pruning_layer_after_layer_equals_the_slow_twin(backbone):
    model, pieces = make_backbone(backbone, num_hidden_layers=6).requires_grad_(False), pieces_of()
    evicted = make_cache(model, "pyramidinfer_official", 0.7)
    with recording() as saw:
        logits = read_in_pieces(model, evicted, pieces)
    assert len({len(heads[0]) for heads in held_slots(evicted)}) > 2
    assert difference(logits[-1], twin_logits(model, torch.cat(pieces, 1), saw)[:, -1:]) < 1e-5


@every_case
def test_held_bytes_are_the_budget(method, backbone, budget):
    model, prompt, batch = model_of(backbone), 60, 2
    evicted, full = make_cache(model, method, budget), DynamicCache(config=model.config)
    read_in_pieces(model, evicted, [tokens(batch, prompt)])
    model(tokens(batch, prompt), past_key_values=full)
    fraction = kv_bytes(evicted) / kv_bytes(full)
    wanted = budget / prompt if isinstance(budget, int) else budget
    first_layers = {"pyramidinfer_paper": 1, "pyramidinfer_official": 2}.get(method, 0) / LAYERS  # they see all
    if wanted > first_layers:
        assert wanted - 1.5 / prompt <= fraction <= wanted + 1e-9 + 0.5 / prompt
    else:
        assert first_layers <= fraction <= first_layers + 0.2
    assert evicted.get_seq_length() == prompt


@every_method
def test_tensors_have_storage_of_their_own(method):
    model = model_of("qwen2_gqa")
    evicted = make_cache(model, method, 0.5)
    for pieces in ([tokens(2, 40)], [tokens(2, 1, seed=1)]):
        read_in_pieces(model, evicted, pieces)
        for _, _, tensor in cache_tensors(evicted):
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


@every_method
def test_decoding_holds_the_budget_or_grows_as_its_docstring_says(method):
    model = model_of("llama_mha")
    evicted = make_cache(model, method, 0.5)
    read_in_pieces(model, evicted, [tokens(1, 40)])
    before = kv_bytes(evicted)
    read_in_pieces(model, evicted, tokens(1, 20, seed=1).split(1, 1))
    token = 2 * LAYERS * model.config.num_key_value_heads * model.config.head_dim * 4
    grows = evicted.eviction.in_decoding is not evicted.eviction
    assert (kv_bytes(evicted) - before) / token == (20 if grows else pytest.approx(10, abs=1))
    assert grows == ("cache grows" in EVICTIONS[method].__doc__.replace("\n    ", " "))


@every_method
def test_the_smallest_budget_still_generates(method):
    model, ids = model_of("qwen2_gqa"), tokens(2, PROMPT)
    for budget in (0.01, 1):
        if method != "razor_attention" or isinstance(budget, float):
            logits = read_in_pieces(model, make_cache(model, method, budget), [ids, *tokens(2, 2, seed=1).split(1, 1)])
            assert all(part.isfinite().all() for part in logits)


@every_method
def test_left_padding_and_batch_order_change_nothing(method):
    model, padding = model_of(BACKBONE), 7
    short, long = tokens(1, PROMPT - padding, seed=1), tokens(1, PROMPT, seed=2)
    together = torch.cat([torch.cat([torch.full((1, padding), PAD), short], 1), long])
    mask = torch.ones(2, PROMPT + NEW + 3, dtype=torch.long)
    mask[0, :padding] = 0
    rest = [tokens(2, 1, seed=3), tokens(2, 3, seed=4), *tokens(2, NEW - 1, seed=5).split(1, 1)]
    batched = make_cache(model, method, 0.4)
    logits = read_in_pieces(model, batched, [together, *rest], mask)
    flipped = make_cache(model, method, 0.4)
    swapped = read_in_pieces(model, flipped, [piece.flip(0) for piece in (together, *rest)], mask.flip(0))
    for row, prompt in enumerate((short, long)):
        alone = make_cache(model, method, 0.4)
        right = read_in_pieces(model, alone, [prompt, *(piece[row : row + 1] for piece in rest)])
        assert held_slots(batched, row) == held_slots(alone) == held_slots(flipped, 1 - row)
        for ours, other, theirs in zip(logits, swapped, right, strict=True):
            assert difference(ours[row, -1], theirs[0, -1]) < 1e-5
            assert difference(other[1 - row, -1], theirs[0, -1]) < 1e-5


@every_method
def test_generate_equals_a_manual_loop(method):
    model, ids = model_of(BACKBONE), tokens(2, PROMPT)
    text = evicting(model).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=make_cache(model, method, 0.3),
        max_new_tokens=NEW,
        do_sample=False,
    )
    evicted, step = make_cache(model, method, 0.3), ids
    for _ in range(NEW):
        step = read_in_pieces(model, evicted, [step])[0][:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, step], 1)
    assert torch.equal(text, ids)


@every_method
def test_beams_take_their_cache_with_them(method):
    model, ids, steps = model_of("qwen2_gqa"), tokens(3, PROMPT), tokens(3, 2, seed=1).split(1, 1)
    beams = torch.tensor([2, 0, 0])
    evicted, right = make_cache(model, method, 0.4), make_cache(model, method, 0.4)
    read_in_pieces(model, evicted, [ids])
    evicted.reorder_cache(beams)
    read_in_pieces(model, right, [ids[beams]])
    for logits, expected in zip(
        read_in_pieces(model, evicted, steps), read_in_pieces(model, right, steps), strict=True
    ):
        assert difference(logits, expected) < 1e-5


@every_method
def test_a_text_is_scored_at_once_where_that_is_as_one_by_one(method):
    model, ids = model_of(BACKBONE), tokens(2, PROMPT + NEW)
    one_by_one = read_in_pieces(model, make_cache(model, method, 0.4), ids[:, :-1].split([PROMPT, *[1] * (NEW - 1)], 1))
    found, _ = text_logits(evicting(model), ids, PROMPT, lambda: make_cache(model, method, 0.4))
    expected = torch.cat([one_by_one[0][:, -1:], *one_by_one[1:]], 1)
    assert difference(found, expected) < 1e-4
    assert make_cache(model, method, 0.4).reads_at_once == (method in {"snapkv", "pyramidinfer_paper"})


def test_other_caches_work_as_ever_and_the_model_is_left_as_it_was():
    model, ids = make_backbone("qwen2_gqa").requires_grad_(False), tokens(2, PROMPT)
    expected, before = model(ids).logits, model.config._attn_implementation
    evicted = evicting(model)
    assert difference(evicted(ids, past_key_values=DynamicCache(config=model.config)).logits, expected) < 1e-6
    assert difference(evicted(ids, use_cache=False).logits, expected) < 1e-6
    assert model.config._attn_implementation == before
    assert torch.equal(model(ids).logits, expected)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_a_cache_can_be_used_again_after_reset():
    model, pieces = model_of("llama_mha"), pieces_of()
    evicted = make_cache(model, "h2o", 0.4)
    first = read_in_pieces(model, evicted, pieces)
    evicted.reset()
    assert not list(cache_tensors(evicted))
    assert torch.equal(read_in_pieces(model, evicted, pieces)[-1], first[-1])


@pytest.mark.parametrize("budget", [0, 0.0, 1.5, -1, True, "0.5"])
def test_a_bad_budget_is_named(budget):
    with pytest.raises(ValueError, match=r"budget=.* must be a fraction above 0 up to 1\.0, or a whole number"):
        make_cache(model_of("llama_mha"), "h2o", budget)


def test_other_mistakes_are_named():
    model = model_of("llama_mha")
    with pytest.raises(ValueError, match="method='h3o' is unknown; choose one of streaming_llm, h2o"):
        make_cache(model, "h3o", 0.5)
    with pytest.raises(ValueError, match="budget=32 of razor_attention must be a fraction"):
        make_cache(model, "razor_attention", 32)
    with pytest.raises(ValueError, match=r"works only with the model that `evicting\(model\)` returns"):
        model(tokens(1, 4), past_key_values=make_cache(model, "h2o", 0.5))
    sliding = make_backbone("mistral_gqa", sliding_window=4)
    with pytest.raises(ValueError, match="attends with sliding_window"):
        evicting(sliding)(tokens(1, 8), past_key_values=make_cache(sliding, "h2o", 0.5))


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
