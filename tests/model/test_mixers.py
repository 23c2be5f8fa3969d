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
from recurformer.heads.price import Keep
from recurformer.heads.scores import window_mask
from recurformer.measure.cache import cache_bytes
from recurformer.model import modeling
from recurformer.model.convert import convert
from recurformer.model.mixers import MIXERS
from recurformer.model.packed import FULL_BITS, as_kept

OTHERS = [name for name in MIXERS if name != "mamba"]
# heads of which every query has its own key and value, whole groups, and parts of groups
BACKBONES = [("llama_mha", "mixed"), ("qwen2_gqa", "mixed"), ("qwen2_gqa", "beta_one"), ("qwen2_gqa", "ragged")]
CASES = [("mamba", *pair) for pair in MATRIX] + [(mixer, *pair) for mixer in OTHERS for pair in BACKBONES]
READING = ["window", "linear", "retention", "window_state"]
FAMILY_CASES = [(mixer, *pair) for mixer, pair in zip(cycle(READING), PAIRS, strict=False)]
CASES += FAMILY_CASES
BY_GROUP, PACKED = "windows", "packed"  # the mixer `window` with a size for each KV head; and bits
CASES += [(name, *pair) for name in (BY_GROUP, PACKED) for pair in BACKBONES]
every_case = pytest.mark.parametrize(("mixer", "backbone", "heads"), CASES)
every_mixer = pytest.mark.parametrize("mixer", [*MIXERS, BY_GROUP, PACKED])
every_other = pytest.mark.parametrize("mixer", OTHERS)
WINDOW = {"window_tokens": 5, "sink_tokens": 2}  # shorter than the inputs


def by_group(backbone, heads, in_turn):
    """Numbers in turn for the KV heads that replaced heads read."""
    per_group = QUERY_HEADS // make_backbone(backbone).config.num_key_value_heads
    numbers = cycle(in_turn)
    return [[next(numbers) for _ in {head // per_group for head in layer}] for layer in HEADS[heads]]


def windows_by_group(backbone, heads):
    """Three sizes, all shorter than the inputs."""
    return by_group(backbone, heads, (5, 3, 8))


def bits_by_group(backbone, heads):
    return by_group(backbone, heads, (4, 8, 16, 8))


def named(mixer, backbone, heads):
    """The name of a mixer in the registry, and the sizes that it stands for."""
    sizes = {}
    if mixer in (BY_GROUP, PACKED):
        sizes["window_tokens"] = windows_by_group(backbone, heads)
    if mixer == PACKED:
        sizes["window_bits"] = bits_by_group(backbone, heads)
    return ("window" if sizes else mixer), sizes


def make(mixer, backbone="qwen2_gqa", heads="mixed"):
    name, sizes = named(mixer, backbone, heads)
    torch.manual_seed(0)
    model = without_zeros(carrying_far(convert(make_backbone(backbone), HEADS[heads], name, **MAMBA | WINDOW | sizes)))
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith(".center"):
            buffer.normal_()
    return model.double() if mixer == PACKED else model  # float32 would round the numbers of two ways apart


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
    if mixer in (BY_GROUP, PACKED):
        _, choice = named(mixer, backbone, "beta_one")
        windows = [window for layer in choice["window_tokens"] for window in layer]
        bits = [bits for layer in choice.get("window_bits", [[16] * len(windows)]) for bits in layer]
        key = {16: 8 * 4, 8: 8 + 2, 4: 4 + 2}  # bytes: 16 bits stand for the model's own type
        if mixer == PACKED:
            key[16] = 8 * 8
        held = sum((2 + window) * 2 * key[each] for window, each in zip(windows, bits, strict=True))
        assert sizes[0] == rows * (held + layers * 8)
    else:
        assert sizes[0] == 4 * numbers[mixer] * rows * layers


@pytest.mark.parametrize("mixer", [BY_GROUP, PACKED])
@pytest.mark.parametrize(("backbone", "heads"), [*BACKBONES, *PAIRS])
@torch.no_grad()
def test_windows_by_group_are_the_original_under_their_masks(mixer, backbone, heads):
    base, ids = make_backbone(backbone).double(), tokens(2, 3 * LENGTH)
    per_group = QUERY_HEADS // base.config.num_key_value_heads
    name, sizes = named(mixer, backbone, heads)
    converted = convert(base, HEADS[heads], name, **sizes, sink_tokens=2)
    centers = {
        int(place.split(".")[2]): center.normal_()
        for place, center in converted.named_buffers()
        if place.endswith(".center")
    }

    def attend(layer, query, key, value, mask, scaling):
        length, groups = query.shape[2], sorted({head // per_group for head in HEADS[heads][layer]})
        visible = window_mask(length, length, 0).repeat(QUERY_HEADS, 1, 1)
        key, value = (x.repeat_interleave(per_group, 1) for x in (key, value))  # of each query head
        for head in HEADS[heads][layer]:
            group = groups.index(head // per_group)
            visible[head] = window_mask(length, sizes["window_tokens"][layer][group], 2)
            if mixer == PACKED:
                bits = sizes["window_bits"][layer][group]
                key[:, head], value[:, head] = as_kept(key[:, head], value[:, head], bits, centers[layer][group])
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
    model = make(PACKED, heads="beta_one")
    for length in (1, 3, 6, LENGTH):
        held = cache_bytes(model(tokens(2, length), use_cache=True).past_key_values)
        expected = sum(
            Keep(window, bits).bytes(length, 8, WINDOW["sink_tokens"]) * (4 if bits == FULL_BITS else 1)  # float64
            for layers in zip(*named(PACKED, "qwen2_gqa", "beta_one")[1].values(), strict=True)
            for window, bits in zip(*layers, strict=True)
        )
        assert held[held.kind == "conv_state"].bytes.sum() == 2 * expected


def test_gradients_pass_the_packed_numbers():
    model, ids = make(PACKED), tokens(2, LENGTH)
    model(ids, labels=ids).loss.backward()
    for name in ("q_proj", "k_proj", "v_proj"):
        packed = getattr(model.model.layers[0].self_attn, name).weight.grad.norm()
        assert packed > 1e-4, name


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
        name, sizes = named(mixer, backbone, heads)
        model = convert(base, HEADS[heads], name, **MAMBA, **sizes)
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
