"""Every mixer in a model: each way to run the same tokens gives the same answer."""

from functools import cache
from itertools import cycle

import pytest
import torch
from test_generate import (
    LENGTH,
    check_chunked_forward,
    check_continuation,
    check_greedy,
    check_left_padding,
    check_same,
    generate,
)
from tiny_models import (
    HEADS,
    MAMBA,
    MATRIX,
    PAIRS,
    QUERY_HEADS,
    carrying_far,
    difference,
    make_backbone,
    tokens,
    without_zeros,
)
from transformers import DynamicCache

import recurformer
from recurformer.heads.attention import attending, causal_attention
from recurformer.heads.scores import window_mask
from recurformer.measure.cache import cache_bytes
from recurformer.model import modeling
from recurformer.model.convert import convert
from recurformer.model.mixers import MIXERS

OTHERS = [name for name in MIXERS if name != "mamba"]
# heads of which every query has its own key and value, whole groups, and parts of groups
BACKBONES = [("llama_mha", "mixed"), ("qwen2_gqa", "mixed"), ("qwen2_gqa", "beta_one"), ("qwen2_gqa", "ragged")]
CASES = [("mamba", *pair) for pair in MATRIX] + [(mixer, *pair) for mixer in OTHERS for pair in BACKBONES]
READING = ["window", "linear", "retention", "window_state"]
FAMILY_CASES = [(mixer, *pair) for mixer, pair in zip(cycle(READING), PAIRS, strict=False)]
CASES += FAMILY_CASES
BY_GROUP = "windows"  # the mixer `window` with a size for each KV head
CASES += [(BY_GROUP, *pair) for pair in BACKBONES]
every_case = pytest.mark.parametrize(("mixer", "backbone", "heads"), CASES)
every_mixer = pytest.mark.parametrize("mixer", [*MIXERS, BY_GROUP])
every_other = pytest.mark.parametrize("mixer", OTHERS)
WINDOW = {"window_tokens": 5, "sink_tokens": 2}  # shorter than the inputs


def windows_by_group(backbone, heads):
    """Three sizes in turn for the KV heads that replaced heads read, all shorter than the inputs."""
    per_group = QUERY_HEADS // make_backbone(backbone).config.num_key_value_heads
    sizes = cycle((5, 3, 8))
    return [[next(sizes) for _ in {head // per_group for head in layer}] for layer in HEADS[heads]]


def make(mixer, backbone="qwen2_gqa", heads="mixed", **sizes):
    if mixer == BY_GROUP:
        mixer, sizes = "window", sizes | {"window_tokens": windows_by_group(backbone, heads)}
    torch.manual_seed(0)
    model = convert(make_backbone(backbone), HEADS[heads], mixer, **MAMBA | WINDOW | sizes)
    return without_zeros(carrying_far(model))


@cache
def shared(mixer, backbone, heads):
    return make(mixer, backbone, heads).requires_grad_(False)


@every_case
def test_step_by_step_equals_at_once(mixer, backbone, heads):
    check_greedy(shared(mixer, backbone, heads))


@every_case
def test_any_chunking_equals_a_full_forward(mixer, backbone, heads):
    for cuts in ((1,), (5,), (4, 8, 12), tuple(range(1, LENGTH))):
        check_chunked_forward(shared(mixer, backbone, heads), cuts)


@every_case
def test_left_padding_changes_nothing(mixer, backbone, heads):
    check_left_padding(shared(mixer, backbone, heads))
    for size in (1, 3):
        check_left_padding(shared(mixer, backbone, heads), prefill_chunk_size=size)


@every_case
def test_a_returned_cache_is_continued_by_several_tokens(mixer, backbone, heads):
    check_continuation(shared(mixer, backbone, heads), 4)


@every_case
def test_static_caches_and_beams(mixer, backbone, heads):
    model, ids = shared(mixer, backbone, heads), tokens(2, LENGTH)
    check_same(generate(model, ids, cache_implementation="static", disable_compile=True), generate(model, ids))
    beams = {"num_beams": 3, "max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(model.generate(ids, **beams), model.generate(ids, use_cache=False, **beams))


@pytest.mark.parametrize("mixer", [BY_GROUP, *(name for name in MIXERS if name != "zero")])
def test_the_checks_see_a_dropped_padding_mask(mixer, monkeypatch):
    monkeypatch.setattr(modeling, "recurrent_mask", lambda attention_mask, length, cache: None)
    with pytest.raises(AssertionError):
        check_left_padding(shared(mixer, "qwen2_gqa", "mixed"))


@pytest.mark.parametrize("mixer", [BY_GROUP, *(name for name in MIXERS if name != "zero")])
def test_the_checks_see_a_forgotten_state(mixer):
    model, ids = shared(mixer, "qwen2_gqa", "mixed"), tokens(2, LENGTH)
    cache = model(ids[:, :8], use_cache=True).past_key_values
    for layer in cache.layers:
        for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            for state in states.values():
                if state is not None:
                    state.zero_()
    assert difference(model(ids[:, 8:], past_key_values=cache).logits, model(ids).logits[:, 8:]) > 1e-2


@every_mixer
def test_a_reset_cache_has_forgotten(mixer):
    model, ids = shared(mixer, "qwen2_gqa", "mixed"), tokens(2, LENGTH)
    cache = model(tokens(2, 7, seed=5), use_cache=True).past_key_values
    cache.reset()
    assert difference(model(ids, past_key_values=cache).logits, model(ids).logits) < 1e-5


@every_mixer
@pytest.mark.parametrize("backbone", ["llama_mha", "qwen2_gqa"])
def test_the_state_has_one_size(mixer, backbone):
    model, sizes = shared(mixer, backbone, "beta_one"), []
    for length in (20, 40):
        frame = cache_bytes(model(tokens(2, length), use_cache=True).past_key_values)
        sizes.append(frame[frame.kind.isin(["conv_state", "recurrent_state"])].bytes.sum())
    assert sizes[0] == sizes[1]
    kv_heads, rows, layers = {"llama_mha": 6, "qwen2_gqa": 2}[backbone], 2, 3
    numbers = {  # of four bytes, in one layer and for one row
        "mamba": 96 * 4 + 96 * 4,
        "window": (2 + 5) * 2 * kv_heads * 8 + 2,  # and the tokens seen, in eight bytes
        "linear": kv_heads * 8 * 9,
        "gated": 6 * 8 * 8,
        "retention": kv_heads * 2 * 8 * 9,  # at two rates
        "window_state": (2 + 5) * 2 * kv_heads * 8 + 1 + kv_heads * 8 * 9,  # and the tokens seen, in four bytes
        "mean": 5 * (kv_heads * 8 + 1),
        "zero": 0,
    }
    if mixer == BY_GROUP:
        held = sum(2 + window for layer in windows_by_group(backbone, "beta_one") for window in layer)
        assert sizes[0] == rows * (held * 2 * 8 * 4 + layers * 8)
    else:
        assert sizes[0] == 4 * numbers[mixer] * rows * layers


@pytest.mark.parametrize(("backbone", "heads"), [*BACKBONES, *PAIRS])
@torch.no_grad()
def test_windows_by_group_are_the_original_under_their_masks(backbone, heads):
    base, sizes, ids = make_backbone(backbone), windows_by_group(backbone, heads), tokens(2, 3 * LENGTH)
    per_group = QUERY_HEADS // base.config.num_key_value_heads

    def attend(layer, query, key, value, mask, scaling):
        length, groups = query.shape[2], sorted({head // per_group for head in HEADS[heads][layer]})
        visible = window_mask(length, length, 0).repeat(QUERY_HEADS, 1, 1)
        for head in HEADS[heads][layer]:
            visible[head] = window_mask(length, sizes[layer][groups.index(head // per_group)], 2)
        if mask is not None:
            visible = visible & mask
        return causal_attention(query, key, value, visible.expand(len(query), -1, -1, -1), scaling)

    expected = attending(base)(ids, use_cache=False, attend=attend).logits
    alike, by_group = (convert(base, HEADS[heads], "window", window_tokens=each, sink_tokens=2) for each in (5, sizes))
    assert difference(by_group(ids).logits, expected) < 1e-5
    assert difference(alike(ids).logits, expected) > 1e-3


def test_a_wide_window_is_the_original():
    cases = {"llama_mha": HEADS, "qwen2_gqa": HEADS, **{backbone: [heads] for backbone, heads in PAIRS}}
    for backbone, sets in cases.items():
        base = make_backbone(backbone)
        for heads in sets:
            for sinks in (0, 3):
                model = convert(base, HEADS[heads], "window", window_tokens=LENGTH, sink_tokens=sinks)
                ids = tokens(2, LENGTH)
                assert difference(model(ids).logits, base(ids).logits) < 1e-5
                narrow = convert(base, HEADS[heads], "window", window_tokens=4, sink_tokens=sinks)
                assert difference(narrow(ids).logits[:, :4], base(ids).logits[:, :4]) < 1e-5
                assert difference(narrow(ids).logits, base(ids).logits) > 1e-3


@pytest.mark.parametrize("backbone", ["llama_mha", "qwen2_gqa"])
def test_zero_is_the_original_without_those_columns(backbone):
    base, ids = make_backbone(backbone), tokens(2, LENGTH)
    model = convert(base, HEADS["mixed"], "zero")
    for layer, replaced in zip(base.model.layers, HEADS["mixed"], strict=True):
        for head in replaced:
            layer.self_attn.o_proj.weight.data[:, head * 8 : head * 8 + 8] = 0
    assert difference(model(ids).logits, base(ids).logits) < 1e-5


@every_case
def test_shapes_on_meta_are_those_of_a_real_conversion(mixer, backbone, heads):
    with torch.device("meta"):
        base = type(make_backbone(backbone))(make_backbone(backbone).config)
        sizes = {"window_tokens": windows_by_group(backbone, heads)} if mixer == BY_GROUP else {}
        model = convert(base, HEADS[heads], "window" if mixer == BY_GROUP else mixer, **MAMBA, **sizes)
    real = shared(mixer, backbone, heads).state_dict()
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == {n: t.shape for n, t in real.items()}
    cache = DynamicCache(config=model.config)
    model(torch.zeros(1, 200, dtype=torch.long, device="meta"), past_key_values=cache, use_cache=True)
    assert cache.get_seq_length() == 200


@every_other
@torch.no_grad()
def test_folding_passes_by_other_mixers(mixer):
    model, ids = make(mixer), tokens(2, 9)
    with recurformer.folded(model):
        assert torch.equal(model(ids).logits, shared(mixer, "qwen2_gqa", "mixed")(ids).logits)
