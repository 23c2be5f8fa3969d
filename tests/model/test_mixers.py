"""Every mixer in a model: the size of its state, what a conversion leaves of the original, shapes without weights."""

import pytest
import torch
from tiny_models import (
    BY_GROUP,
    FAMILY_CASES,
    HEADS,
    MAMBA,
    OTHERS,
    PACKED,
    PAIRS,
    QUERY_HEADS,
    SHARING,
    WINDOW,
    difference,
    every_mixer,
    make_backbone,
    make_mixed,
    named,
    shared_mixed,
    tokens,
)
from transformers import StaticCache

import recurformer
from recurformer.heads.attention import attending, causal_attention
from recurformer.heads.price import Keep
from recurformer.heads.scores import window_mask
from recurformer.measure.cache import cache_bytes, count_cache
from recurformer.model.convert import convert
from recurformer.model.mixers import MIXERS
from recurformer.model.packed import FULL_BITS, as_kept

LENGTH = 13


@every_mixer
@pytest.mark.parametrize("backbone", ["llama_mha", "qwen2_gqa"])
def test_the_state_has_one_size(mixer, backbone):
    model, sizes = shared_mixed(mixer, backbone, "beta_one"), []
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
    if mixer in (BY_GROUP, PACKED):
        _, choice = named(mixer, backbone, "beta_one")
        windows = [window for layer in choice["window_tokens"] for window in layer]
        bits = [bits for layer in choice.get("window_bits", [[16] * len(windows)]) for bits in layer]
        key = {16: 8 * 4, 8: 8 + 2, 6: 6 + 2, 5: 5 + 2, 4: 4 + 2}  # bytes: 16 bits stand for the model's own type
        if mixer == PACKED:
            key[16] = 8 * 8
        held = sum((2 + window) * 2 * key[each] for window, each in zip(windows, bits, strict=True))
        assert sizes[0] == rows * (held + layers * 8)
    else:
        assert sizes[0] == 4 * numbers[mixer] * rows * layers


@pytest.mark.parametrize("mixer", [BY_GROUP, PACKED])
@pytest.mark.parametrize(("backbone", "heads"), dict.fromkeys([*SHARING, *PAIRS]))
@torch.no_grad()
def test_windows_by_group_are_the_original_under_their_masks(mixer, backbone, heads):
    base, ids = make_backbone(backbone).double(), tokens(2, 3 * LENGTH)
    per_group = QUERY_HEADS // base.config.num_key_value_heads
    name, sizes = named(mixer, backbone, heads)
    shape = len(HEADS[heads]), base.config.num_key_value_heads, base.model.layers[0].self_attn.head_dim
    centers = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    converted = convert(base, HEADS[heads], name, **sizes, sink_tokens=2, key_centers=centers)

    def attend(layer, query, key, value, mask, scaling):
        length, groups = query.shape[2], sorted({head // per_group for head in HEADS[heads][layer]})
        visible = window_mask(length, length, 0).repeat(QUERY_HEADS, 1, 1)
        key, value = (x.repeat_interleave(per_group, 1) for x in (key, value))  # of each query head
        for head in HEADS[heads][layer]:
            group = groups.index(head // per_group)
            visible[head] = window_mask(length, sizes["window_tokens"][layer][group], 2)
            if mixer == PACKED:
                bits = sizes["window_bits"][layer][group]
                key[:, head], value[:, head] = as_kept(
                    key[:, head], value[:, head], bits, centers[layer, head // per_group]
                )
        if mask is not None:
            visible = visible & mask
        return causal_attention(query, key, value, visible.expand(len(query), -1, -1, -1), scaling)

    expected = attending(base)(ids, use_cache=False, attend=attend).logits
    assert difference(converted(ids).logits, expected) < (1e-10 if mixer == PACKED else 1e-5)
    alike = convert(base, HEADS[heads], "window", window_tokens=5, sink_tokens=2)
    assert difference(alike(ids).logits, expected) > 1e-3
    if mixer == PACKED:
        full = convert(base, HEADS[heads], "window", window_tokens=sizes["window_tokens"], sink_tokens=2)
        assert 1e-4 < difference(full(ids).logits, expected) < 1, "few bits change something, but not much"


@torch.no_grad()
def test_a_window_grows_up_to_its_size():
    """A cache of few tokens has few slots, of the bytes that the price of a choice counts."""
    model = make_mixed(PACKED, heads="beta_one")
    for length in (1, 3, 6, LENGTH):
        held = cache_bytes(model(tokens(2, length), use_cache=True).past_key_values)
        expected = sum(
            Keep(window, bits).bytes(length, 8, WINDOW["sink_tokens"]) * (4 if bits == FULL_BITS else 1)  # float64
            for layers in zip(*named(PACKED, "qwen2_gqa", "beta_one")[1].values(), strict=True)
            for window, bits in zip(*layers, strict=True)
        )
        assert held[held.kind == "conv_state"].bytes.sum() == 2 * expected


def test_centers_of_another_shape_are_refused():
    name, sizes = named(PACKED, "llama_mha", "mixed")
    with pytest.raises(ValueError, match=r"key_centers is \(1, 2, 8\); it must be \(3, 6, head_dim\)"):
        convert(make_backbone("llama_mha"), HEADS["mixed"], name, **sizes, key_centers=torch.zeros(1, 2, 8))


def test_a_static_cache_has_room_for_its_length_alone():
    base, ids = make_backbone("qwen2_gqa"), tokens(2, 9)
    model = convert(base, HEADS["beta_one"], "window", window_tokens=100, window_bits=None)
    cache = StaticCache(config=model.config, max_cache_len=12)
    logits = torch.cat([model(part, past_key_values=cache).logits for part in (ids[:, :4], ids[:, 4:])], 1)
    assert difference(logits, model(ids).logits) < 1e-5
    assert all(layer.conv_states[0].shape[1] == 12 for layer in cache.layers)


def test_gradients_pass_the_packed_numbers():
    model, ids = make_mixed(PACKED), tokens(2, LENGTH)
    model(ids, labels=ids).loss.backward()
    for name in ("q_proj", "k_proj", "v_proj"):
        packed = getattr(model.model.layers[0].self_attn, name).weight.grad.norm()
        assert packed > 1e-4, name


@pytest.mark.parametrize(("backbone", "heads"), dict.fromkeys([*SHARING, *PAIRS]))
@pytest.mark.parametrize("sinks", [0, 3])
@torch.no_grad()
def test_a_wide_window_is_the_original(backbone, heads, sinks):
    base, ids = make_backbone(backbone), tokens(2, LENGTH)
    expected = base(ids).logits
    wide, narrow = (
        convert(base, HEADS[heads], "window", window_tokens=size, sink_tokens=sinks)(ids).logits for size in (LENGTH, 4)
    )
    assert difference(wide, expected) < 1e-5
    assert difference(narrow[:, :4], expected[:, :4]) < 1e-5
    assert difference(narrow, expected) > 1e-3


@pytest.mark.parametrize("backbone", ["llama_mha", "qwen2_gqa"])
def test_zero_is_the_original_without_those_columns(backbone):
    base, ids = make_backbone(backbone), tokens(2, LENGTH)
    model = convert(base, HEADS["mixed"], "zero")
    for layer, replaced in zip(base.model.layers, HEADS["mixed"], strict=True):
        for head in replaced:
            layer.self_attn.o_proj.weight.data[:, head * 8 : head * 8 + 8] = 0
    assert difference(model(ids).logits, base(ids).logits) < 1e-5


SHAPES = [*FAMILY_CASES, *(("mamba", *pair) for pair in PAIRS)]
SHAPES += [(mixer, "qwen2_gqa", "ragged") for mixer in [*OTHERS, BY_GROUP, PACKED]]


@pytest.mark.parametrize(("mixer", "backbone", "heads"), dict.fromkeys(SHAPES))
def test_shapes_on_meta_are_those_of_a_real_conversion(mixer, backbone, heads):
    with torch.device("meta"):
        base = type(make_backbone(backbone))(make_backbone(backbone).config)
        name, sizes = named(mixer, backbone, heads)
        model = convert(base, HEADS[heads], name, **MAMBA, **sizes)
    real, ids = shared_mixed(mixer, backbone, heads), tokens(1, 70)  # more than one block
    shapes = {name: tensor.shape for name, tensor in real.state_dict().items()}
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == shapes
    held = cache_bytes(real(ids, use_cache=True).past_key_values)
    assert count_cache(real, ids.shape[1]).equals(held)


@pytest.mark.parametrize("mixer", [name for name in OTHERS if not hasattr(MIXERS[name], "whole_readout")])
@torch.no_grad()
def test_folding_passes_by_other_mixers(mixer):
    model, ids = make_mixed(mixer), tokens(2, 9)
    with recurformer.folded(model):
        assert torch.equal(model(ids).logits, shared_mixed(mixer)(ids).logits)
