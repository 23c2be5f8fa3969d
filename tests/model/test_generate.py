"""Caches and generate(): every way to run the same tokens gives the same answer, and the checks see silent failures."""

import pytest
import torch
from tiny_models import MATRIX, PAD, difference, shared_converted, tokens
from transformers import DynamicCache, StaticCache

from recurformer.model import mamba, modeling
from recurformer.model.scan import selective_scan
from recurformer.model.step import state_step

LENGTH, NEW = 13, 6
GREEDY = {"do_sample": False, "max_new_tokens": NEW, "return_dict_in_generate": True, "output_logits": True}
every_model = pytest.mark.parametrize(("backbone", "heads"), MATRIX)
some_models = pytest.mark.parametrize(
    ("backbone", "heads"),
    [("llama_mha", "beta_one"), ("qwen2_gqa", "ragged"), ("mistral_gqa", "attention_free_first")],
)


def generate(model, ids, **arguments):
    """Tokens (B, L + NEW) and the logits (B, NEW, vocabulary) that chose them."""
    attention_mask = arguments.pop("attention_mask", torch.ones_like(ids))
    result = model.generate(ids, attention_mask=attention_mask, **GREEDY | arguments)
    return result.sequences, torch.stack(result.logits, 1), result.past_key_values


def check_same(result, expected, tolerance=1e-4):
    assert torch.equal(result[0][:, -NEW:], expected[0][:, -NEW:])
    assert difference(result[1], expected[1]) < tolerance


def check_greedy(model):
    ids = tokens(2, LENGTH)
    check_same(generate(model, ids), generate(model, ids, use_cache=False))


def check_chunked_forward(model, cuts):
    ids = tokens(2, LENGTH)
    full, cache, parts = model(ids, use_cache=False).logits, DynamicCache(config=model.config), []
    for start, stop in zip((0, *cuts), (*cuts, LENGTH), strict=True):
        parts.append(model(ids[:, start:stop], past_key_values=cache, use_cache=True).logits)
    assert difference(torch.cat(parts, 1), full) < 1e-4
    assert cache.get_seq_length() == LENGTH


def check_left_padding(model, **arguments):
    short, long = tokens(1, LENGTH - 5, seed=1), tokens(1, LENGTH, seed=2)
    padded = torch.cat([torch.full((1, 5), PAD), short], 1)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :5] = 0
    both = generate(model, torch.cat([padded, long]), attention_mask=mask, **arguments)
    for row, ids in enumerate((short, long)):
        alone = generate(model, ids)
        check_same([both[0][row : row + 1], both[1][row : row + 1]], alone)


def check_continuation(model, pieces):
    """A returned cache is continued by several new tokens at once."""
    ids = tokens(2, LENGTH)
    first = generate(model, ids)
    history = torch.cat([first[0], tokens(2, pieces, seed=3)], 1)
    check_same(generate(model, history, past_key_values=first[2]), generate(model, history, use_cache=False))


@every_model
def test_greedy_with_cache_equals_without(backbone, heads):
    check_greedy(shared_converted(backbone, heads))


@every_model
def test_any_chunking_equals_a_full_forward(backbone, heads):
    for cuts in ((1,), (5,), (4, 8, 12), tuple(range(1, LENGTH))):
        check_chunked_forward(shared_converted(backbone, heads), cuts)


@every_model
def test_left_padding_changes_nothing(backbone, heads):
    check_left_padding(shared_converted(backbone, heads))


@every_model
def test_chunked_prefill_equals_one_prefill(backbone, heads):
    model, ids = shared_converted(backbone, heads), tokens(2, LENGTH)
    check_same(generate(model, ids, prefill_chunk_size=5), generate(model, ids))


@every_model
def test_a_returned_cache_is_continued(backbone, heads):
    check_continuation(shared_converted(backbone, heads), 4)


@every_model
def test_static_cache_equals_dynamic(backbone, heads):
    model, ids = shared_converted(backbone, heads), tokens(2, LENGTH)
    check_same(generate(model, ids, cache_implementation="static", disable_compile=True), generate(model, ids))


@every_model
def test_beams_with_cache_equal_beams_without(backbone, heads):
    model, ids = shared_converted(backbone, heads), tokens(2, LENGTH)
    beams = {"num_beams": 3, "max_new_tokens": NEW, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(model.generate(ids, **beams), model.generate(ids, use_cache=False, **beams))


@some_models
def test_static_cache_with_padding_and_chunked_prefill(backbone, heads):
    model, ids = shared_converted(backbone, heads), tokens(2, LENGTH)
    static = {"cache_implementation": "static", "disable_compile": True}
    check_left_padding(model, **static)
    check_left_padding(model, prefill_chunk_size=4)
    check_same(generate(model, ids, prefill_chunk_size=4, **static), generate(model, ids))


@some_models
def test_sampling_with_cache_equals_without(backbone, heads):
    model, ids = shared_converted(backbone, heads), tokens(2, LENGTH)
    results = []
    for use_cache in (True, False):
        torch.manual_seed(0)
        sampled = {"do_sample": True, "num_return_sequences": 3, "temperature": 2.0, "use_cache": use_cache}
        results.append(model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, **sampled))
    assert torch.equal(*results) and len(results[0]) == 6


@every_model
def test_permuting_the_batch_permutes_the_logits(backbone, heads):
    model, ids, order = shared_converted(backbone, heads), tokens(4, LENGTH), torch.tensor([2, 0, 3, 1])
    assert difference(model(ids[order]).logits, model(ids).logits[order]) < 1e-5


@some_models
def test_the_future_does_not_change_the_past(backbone, heads):
    model, ids = shared_converted(backbone, heads), tokens(2, LENGTH)
    other = torch.cat([ids[:, :7], tokens(2, LENGTH - 7, seed=9)], 1)
    assert difference(model(other).logits[:, :7], model(ids).logits[:, :7]) < 1e-5


@some_models
def test_a_preallocated_static_cache_decodes(backbone, heads):
    model, ids = shared_converted(backbone, heads), tokens(2, LENGTH)
    cache = StaticCache(config=model.config, max_cache_len=32)
    logits = [model(piece, past_key_values=cache, use_cache=True).logits for piece in ids.split([8, 4, 1], 1)]
    assert difference(torch.cat(logits, 1), model(ids, use_cache=False).logits) < 1e-4


@pytest.mark.parametrize("heads", ["mixed", "attention_free_first", "beta_one", "ragged"])
def test_the_cache_holds_retained_kv_heads_only(heads):
    model = shared_converted("qwen2_gqa", heads)
    cache = model(tokens(2, LENGTH), use_cache=True).past_key_values
    for index, replaced in enumerate(model.config.recurrent_heads):
        layer, retained = cache.layers[index], sorted(set(range(6)) - set(replaced))
        kv_heads = len({head // 3 for head in retained})
        if kv_heads:
            assert layer.keys.shape == layer.values.shape == (2, kv_heads, LENGTH, 8)
        elif model.config.layer_types[index] == "hybrid":
            assert layer.keys.shape == (2, 1, LENGTH, 1)  # beta = 1: the token counter
        if replaced:
            assert layer.recurrent_states[0].shape == (2, 2 * len(replaced) * 8, 4)
            assert layer.conv_states[0].shape == (2, 2 * len(replaced) * 8, 4)


def forget_initial_state(monkeypatch):
    monkeypatch.setattr(
        mamba, "selective_scan", lambda *a, initial_state=None, **kw: selective_scan(*a, initial_state=None, **kw)
    )
    monkeypatch.setattr(mamba, "state_step", lambda step: state_step(step._replace(state=step.state.zero_())))


@every_model
def test_the_checks_see_a_scan_that_forgets_its_state(backbone, heads, monkeypatch):
    model, ids = shared_converted(backbone, heads), tokens(2, LENGTH)
    whole = generate(model, ids, use_cache=False)
    forget_initial_state(monkeypatch)
    with pytest.raises(AssertionError):
        check_greedy(model)
    with pytest.raises(AssertionError):
        check_chunked_forward(model, (5,))
    with pytest.raises(AssertionError):
        check_continuation(model, 4)
    with pytest.raises(AssertionError):
        check_same(generate(model, ids, prefill_chunk_size=5), whole)


@every_model
def test_the_checks_see_a_dropped_padding_mask(backbone, heads, monkeypatch):
    monkeypatch.setattr(modeling, "recurrent_mask", lambda attention_mask, length, cache: None)
    with pytest.raises(AssertionError):
        check_left_padding(shared_converted(backbone, heads))


@some_models
def test_embeddings_may_stand_for_the_prompt(backbone, heads):
    model, ids = shared_converted(backbone, heads), tokens(2, LENGTH)
    arguments = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False}
    arguments |= {"eos_token_id": 3, "pad_token_id": 0}
    written = model.generate(inputs_embeds=model.get_input_embeddings()(ids), **arguments)
    assert torch.equal(written, model.generate(ids, **arguments)[:, LENGTH:])


def test_the_base_model_answers_in_the_form_that_is_asked_for():
    model, ids = shared_converted("qwen2_gqa", "ragged"), tokens(1, 4)
    cache = model(ids, use_cache=True).past_key_values
    assert model.model(ids, return_dict=None).last_hidden_state.shape == (1, 4, 48)
    assert isinstance(model.model(ids, return_dict=False), tuple)
    assert model(ids[:, :1], past_key_values=cache, is_causal=True).logits.isfinite().all()
