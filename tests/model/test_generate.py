"""Checks that every way to run the same tokens gives the same answer; `test_mixers.py` calls them for every mixer."""

import pytest
import torch
from tiny_models import PAD, difference, shared_converted, tokens
from transformers import DynamicCache

LENGTH, NEW = 13, 6
GREEDY = {"do_sample": False, "max_new_tokens": NEW, "return_dict_in_generate": True, "output_logits": True}
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


@some_models
def test_static_cache_with_padding_and_chunked_prefill(backbone, heads):
    model, ids = shared_converted(backbone, heads), tokens(2, LENGTH)
    static = {"cache_implementation": "static", "disable_compile": True}
    check_left_padding(model, **static)
    for size in (1, 4):  # the library's mask function takes every single token for a generated one
        check_left_padding(model, prefill_chunk_size=size, **static)
    check_same(generate(model, ids, prefill_chunk_size=4, **static), generate(model, ids))


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
