"""Every method of a cache is right for the mixers' states, or refused before anything has changed."""

import copy
from functools import partial

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import PAD, difference, every_mixer, make_backbone, make_mixed, no_gradients, shared_mixed, tokens
from transformers import DynamicCache, StaticCache
from transformers.integrations.executorch import convert_and_export_with_cache

from recurformer.evict import evicting, make_cache
from recurformer.model.caches import NO_WAY_BACK
from recurformer.model.convert import convert

__all__ = ["no_gradients"]
LAYOUTS = [("qwen2_gqa", "ragged"), ("llama_mha", "beta_one"), ("gemma3_text", "mixed")]  # one layer of it slides
every_layout = pytest.mark.parametrize(("backbone", "heads"), LAYOUTS)
pytestmark = pytest.mark.usefixtures("no_gradients")
LENGTH = 13


def read(model, ids, mask=None, cache=None):
    """A cache that has read the tokens."""
    cache = DynamicCache(config=model.config) if cache is None else cache
    positions = None if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
    model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
    return cache


def check_rows(model, cache, ids, mask):
    """The cache goes on as if it had read the rows `ids` (B, L) itself."""
    for seed, length in enumerate((1, 3, 1, 1)):
        more = tokens(len(ids), length, seed=7 + seed)
        ids, mask = torch.cat([ids, more], 1), torch.cat([mask, torch.ones_like(more)], 1)
        positions = (mask.cumsum(1) - 1)[:, -length:]
        logits = model(more, attention_mask=mask, position_ids=positions, past_key_values=cache).logits
        expected = model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), use_cache=False)
        assert difference(logits, expected.logits[:, -length:]) < 1e-4


def prompts():
    ids, mask = tokens(3, LENGTH), torch.ones(3, LENGTH, dtype=torch.long)
    ids[1, :4], mask[1, :4] = PAD, 0
    return ids, mask


METHODS = {
    "select": (lambda cache: cache.batch_select_indices(torch.tensor([2, 0])), [2, 0]),
    "one": (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
    "by truth": (lambda cache: cache.batch_select_indices(torch.tensor([True, False, True])), [0, 2]),
    "repeat": (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
    "reorder": (lambda cache: cache.reorder_cache(torch.tensor([2, 2, 1])), [2, 2, 1]),
}


@every_mixer
@every_layout
def test_rows_are_chosen_and_repeated(mixer, backbone, heads):
    model, (ids, mask) = shared_mixed(mixer, backbone, heads), prompts()
    with torch.inference_mode():  # a prefix that was read in it is continued outside
        prefix = read(model, ids, mask)
    for change, rows in METHODS.values():
        cache = copy.deepcopy(prefix)
        change(cache)
        check_rows(model, cache, ids[rows], mask[rows])
    check_rows(model, prefix, ids, mask)


@every_mixer
@every_layout
@pytest.mark.parametrize("new_cache", [DynamicCache, partial(StaticCache, max_cache_len=32)], ids=["dynamic", "static"])
def test_copies_and_resets(mixer, backbone, heads, new_cache):
    model, (ids, mask) = shared_mixed(mixer, backbone, heads), prompts()
    cache = read(model, ids, mask, new_cache(config=model.config))
    twin = copy.deepcopy(cache)
    check_rows(model, cache, ids, mask)
    check_rows(model, twin, ids, mask)
    cache.reset()
    check_rows(model, read(model, ids.flip(1), mask, cache), ids.flip(1), mask)
    cache.reset()
    if new_cache is DynamicCache:  # of other rows
        check_rows(model, read(model, ids[:2], mask[:2], cache), ids[:2], mask[:2])
    else:
        with pytest.raises(ValueError, match="past_key_values has 3 rows, the input 2"):
            read(model, ids[:2], mask[:2], cache)


@pytest.mark.parametrize("mixer", ["mamba", "packed"])
def test_steps_fill_the_room_of_one_cache_alone(mixer):
    model, ids, other = shared_mixed(mixer, "qwen2_gqa", "ragged"), tokens(2, 60), tokens(2, 60, seed=1)
    with torch.inference_mode():
        cache = read(model, ids[:, :9])
        for place in range(9, 15):
            read(model, ids[:, place : place + 1], cache=cache)
    twin = copy.deepcopy(cache)
    for place in range(15, 60):  # more than the room has
        for text, own in ((ids, cache), (other, twin)):
            read(model, text[:, place : place + 1], cache=own)
    for text, own in ((ids, cache), (torch.cat([ids[:, :15], other[:, 15:]], 1), twin)):
        check_rows(model, own, text, torch.ones_like(text))


@every_mixer
@every_layout
def test_tokens_are_not_given_back(mixer, backbone, heads):
    model, (ids, mask) = shared_mixed(mixer, backbone, heads), prompts()
    cache = read(model, ids, mask)
    for refused in (lambda: cache.crop(-2), cache.activate_past_recording):
        with pytest.raises(ValueError, match=r"copy it before \(copy.deepcopy\)") as error:
            refused()
        assert "\n" not in str(error.value)
    assert not cache.is_croppable
    cache.crop(0)
    check_rows(model, cache, ids, mask)
    recording = DynamicCache(config=model.config)
    recording.activate_past_recording()
    with pytest.raises(ValueError, match="gives no tokens back"):
        read(model, ids, cache=recording)


@every_mixer
def test_a_converted_model_is_no_draft(mixer):
    base = make_backbone("qwen2_gqa")
    with pytest.raises(ValueError) as error:
        base.generate(tokens(1, 9), assistant_model=shared_mixed(mixer, "qwen2_gqa", "mixed"), max_new_tokens=4)
    assert str(error.value) == NO_WAY_BACK


@every_mixer
def test_a_cache_of_other_rows_is_refused(mixer):
    model, ids = shared_mixed(mixer, "qwen2_gqa", "attention_free_first"), tokens(1, LENGTH)
    arguments = {"do_sample": True, "num_return_sequences": 3, "max_new_tokens": 4}
    for length in (1, 3):
        cache, prompt = read(model, ids), torch.cat([ids, tokens(1, length, seed=1)], 1)
        with pytest.raises(ValueError, match=r"past_key_values has 1 rows, the input 3: .*batch_repeat_inter") as error:
            model.generate(prompt, past_key_values=cache, **arguments)
        assert "\n" not in str(error.value)
    cache.batch_repeat_interleave(3)
    assert model.generate(prompt, past_key_values=cache, **arguments).shape == (3, LENGTH + 3 + 4)


def test_a_copy_of_the_keys_alone_is_refused():
    model, ids = shared_mixed("mamba", "qwen2_gqa", "ragged"), tokens(2, LENGTH)
    cache = read(model, ids)
    with pytest.raises(ValueError, match=r"holds keys, but no states of the model's mixers.*copy\.deepcopy"):
        model(ids[:, :1], past_key_values=DynamicCache(list(cache), config=model.config))


def test_an_export_with_a_cache_is_refused():
    model = make_mixed("mamba", "qwen2_gqa", "ragged")
    settings = {"use_cache": True, "cache_implementation": "static"}
    model.generation_config.update(**settings, cache_config={"batch_size": 1, "max_cache_len": 20})
    with pytest.raises(Exception, match="with a cache would lose the mixers' states"):
        convert_and_export_with_cache(model)


def test_a_convolution_takes_no_adapter():
    with pytest.raises(ValueError, match="leave conv1d out of target_modules"):
        get_peft_model(make_mixed("mamba", "llama_mha", "beta_one"), LoraConfig(r=192, target_modules=["conv1d"]))


@pytest.mark.parametrize(("backbone", "heads"), LAYOUTS[:2])
@pytest.mark.parametrize("new_cache", [DynamicCache, partial(StaticCache, max_cache_len=32)], ids=["dynamic", "static"])
def test_a_mask_that_changes_cached_tokens_is_refused(backbone, heads, new_cache):
    model, (ids, mask), more = shared_mixed("window_state", backbone, heads), prompts(), tokens(3, 2, seed=5)
    now = torch.cat([mask, torch.ones_like(more)], 1)
    taken, given, swapped = now.clone(), now.clone(), now.clone()
    taken[2, 6], given[1, 3], swapped[1, 3:5] = 0, 1, torch.tensor([1, 0])
    for start in (mask, torch.ones_like(mask)):
        cache = read(model, ids, start, new_cache(config=model.config))
        others = (taken, given, swapped, None) if start is mask else (taken, swapped)
        for other in others:
            with pytest.raises(ValueError, match=r"^attention_mask does not call the same cached tokens real") as error:
                model(more, attention_mask=other, past_key_values=cache)
            assert "\n" not in str(error.value)
        with pytest.raises(ValueError, match="attention_mask has 2 columns for 15 tokens"):
            model(more, attention_mask=now[:, -2:], past_key_values=cache)
        check_rows(model, cache, ids, start)


def test_compiled_code_refuses_such_a_mask_too():
    base = make_backbone("qwen2_gqa", num_hidden_layers=1)
    model, (ids, mask) = convert(base, [[0]], "window", window_tokens=3), prompts()
    cache, taken = read(model, ids, mask), torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
    taken[2, 6] = 0
    with pytest.raises(RuntimeError, match="attention_mask does not call the same cached tokens real"):
        torch.compile(model, backend="eager")(ids[:, :1], attention_mask=taken, past_key_values=cache)


@pytest.mark.parametrize("static", [False, True])
def test_generate_refuses_to_take_a_written_token_for_padding(static):
    model, ids = shared_mixed("mamba", "qwen2_gqa", "ragged"), tokens(1, 7)
    arguments = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}
    arguments |= {"cache_implementation": "static", "disable_compile": True} if static else {}
    first = model.generate(ids, **arguments)
    arguments.pop("cache_implementation", None)
    whole, written = torch.cat([first.sequences, tokens(1, 2, seed=3)], 1), int(first.sequences[0, 8])
    again = {**arguments, "past_key_values": first.past_key_values, "pad_token_id": written, "max_new_tokens": 3}
    if static:
        again["past_key_values"] = read(
            model, first.sequences[:, :-1], cache=StaticCache(config=model.config, max_cache_len=32)
        )
    with pytest.raises(ValueError, match="generate\\(\\) takes every pad_token_id for padding"):
        model.generate(whole, **again)
    told = model.generate(whole, attention_mask=torch.ones_like(whole), **again).sequences
    fresh = {**arguments, "max_new_tokens": 3}
    assert torch.equal(told, model.generate(whole, attention_mask=torch.ones_like(whole), **fresh).sequences)


def test_an_evicting_cache_repeats_its_rows_and_gives_no_tokens_back():
    model, ids, more = evicting(shared_mixed("mamba", "qwen2_gqa", "mixed")), tokens(2, LENGTH), tokens(4, 2, seed=5)
    cache = read(model, ids, cache=make_cache(model, "h2o", 0.5))
    with pytest.raises(ValueError, match="gives no tokens back"):
        cache.crop(-1)
    cache.batch_repeat_interleave(2)
    logits = model(more, past_key_values=cache).logits
    for row in range(4):
        alone = read(model, ids[row // 2 : row // 2 + 1], cache=make_cache(model, "h2o", 0.5))
        assert difference(logits[row], model(more[row : row + 1], past_key_values=alone).logits[0]) < 1e-4
