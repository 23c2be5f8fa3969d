"""A layer with windows at one token, and at an input's beginning: the C++ kernels against float64."""

from copy import deepcopy
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from tiny_models import difference
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from recurformer import convert
from recurformer.model import cpp_step, native
from recurformer.model.caches import GROWTH
from recurformer.model.layout import head_layout, rotate
from recurformer.model.mixer import ReplacedHeads
from recurformer.model.mixer_window import WindowMixer, WindowStateMixer
from recurformer.model.mixers_state import RetentionMixer
from recurformer.model.packed import BITS, FULL_BITS, hadamard, pack, unpack

pytestmark = pytest.mark.skipif(native.refuses() is not None, reason="needs the C++ kernels")

SINKS = 2
LAYOUT = head_layout([0, 1, 3, 6, 7, 8], 9, 3)  # two, one and three replaced heads read three KV heads
SEEN = [0, 1, 9, 30]  # of each row: an empty ring, a part of one, rings that have turned


def windows(bits, dim):
    """A layer of three KV heads: two windows of some bits, between them one of full precision."""
    sizes = SimpleNamespace(
        group_windows=[[7, 4, 200]], group_bits=[[bits, FULL_BITS, bits]], sink_tokens=SINKS, attention_dropout=0.0
    )
    sizes.window_tokens = None
    mixer = WindowMixer(sizes, LAYOUT, dim, 0).eval()
    if mixer.center is not None:
        mixer.center.normal_()
    return mixer


def numbers(packed, bits):
    """Slots (..., width) as keys and values (..., dim) each, in float64."""
    halves = packed.chunk(2, -1)
    return [x.double() if bits == FULL_BITS else unpack(x, bits, torch.float64) for x in halves]


def filled(mixer, dim, dtype=torch.float32):
    """A cache in which the rows have seen some tokens."""
    layer = SimpleNamespace(conv_states={}, recurrent_states={0: torch.tensor(SEEN).unsqueeze(1)})
    for index, window in enumerate(mixer.windows):
        x = torch.randn(len(SEEN), min(window.slots, 40), len(window.groups), 2, dim)
        full = window.bits == FULL_BITS
        layer.conv_states[index] = (x.to(dtype) if full else pack(x, window.bits)).flatten(-2)
    return SimpleNamespace(layers=[layer])


def given(dim, rotated, dtype=torch.float32, length=1):
    """Values and heads of each row, parts of wider tensors as projections give them."""
    rows = len(SEEN)
    wide, keys, values = (torch.randn(rows, length, count, dim, dtype=dtype) for count in (9, 4, 3))
    turns = tuple(torch.randn(rows, length, rotated, dtype=dtype) for _ in range(2)) if rotated else None
    return values.flatten(2), ReplacedHeads(torch.empty(0), wide[:, :, 1:7], keys[:, :, 1:], turns)


def expected(mixer, values, heads, cache, seen):
    """Outputs (B, heads, dim) in float64, from the slots after the step."""
    queries, _ = rotate(heads.queries.transpose(1, 2).double(), heads.keys.transpose(1, 2).double(), exact(heads))
    outputs = []
    for group, (first, last) in enumerate(mixer.query_spans):
        index, place, *_ = mixer.places[group]
        window, slots = mixer.windows[index], cache.layers[0].conv_states[index]
        keys, entries = numbers(slots[:, :, place], window.bits)  # (B, held, dim)
        visible = window._slot_places(seen, slots.shape[1]) >= 0
        own = queries[:, first:last, 0]
        own = own if window.bits == FULL_BITS else hadamard(own)
        scores = own @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5
        output = scores.masked_fill(~visible.unsqueeze(1), -torch.inf).softmax(-1) @ entries
        outputs.append(output if window.bits == FULL_BITS else hadamard(output))
    return torch.cat(outputs, 1)


def exact(heads):
    """The turns in float64."""
    return heads.position_embeddings and tuple(x.double() for x in heads.position_embeddings)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("dim", "rotated"), [(6, 6), (24, 0), (64, 64), (80, 32), (128, 128)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.01)])
@torch.no_grad()
def test_a_step_writes_one_slot_and_attends_to_all(bits, dim, rotated, dtype, tolerance):
    torch.manual_seed(0)
    mixer = windows(bits, dim).to(dtype)
    cache = filled(mixer, dim, dtype)
    slots, seen = cache.layers[0].conv_states, cache.layers[0].recurrent_states[0]
    for step in range(12):
        before = {index: x.clone() for index, x in slots.items()}
        values, heads = given(dim, rotated, dtype)
        output = mixer.attend(values, cache, seen, None, heads)[0]
        assert output.dtype == dtype
        assert seen[:, 0].tolist() == [start + step + 1 for start in SEEN]
        truth = expected(mixer, values, heads, cache, seen)
        assert difference(output[:, 0].double(), truth.flatten(1)) < tolerance
        _, keys = rotate(heads.queries.transpose(1, 2).double(), heads.keys.transpose(1, 2).double(), exact(heads))
        keys = keys[:, :, 0] if mixer.center is None else keys[:, :, 0] - mixer.center
        for index, window in enumerate(mixer.windows):
            held, groups = slots[index].shape[1], list(window.groups)
            assert held == min(window.slots, 40 if step + max(SEEN) < 40 else 40 + GROWTH)
            entry = torch.cat([keys[:, groups], values.view(len(SEEN), 3, dim)[:, groups]], -1)
            parts = entry.double().chunk(2, -1)
            kept = parts if window.bits == FULL_BITS else [hadamard(x) for x in parts]
            for row, start in enumerate(SEEN):
                place = start + step
                slot = place if place < SINKS else SINKS + (place - SINKS) % window.tokens
                others = [other for other in range(min(held, before[index].shape[1])) if other != slot]
                assert torch.equal(slots[index][row, others], before[index][row, others])
                for found, wanted in zip(numbers(slots[index][row, slot], window.bits), kept, strict=True):
                    step_width = 2 * wanted[row].abs().amax(-1, keepdim=True) / 2**window.bits
                    assert ((found - wanted[row]).abs() <= 0.52 * step_width + 1e-5 + 0.004 * wanted[row].abs()).all()
                    assert window.bits < FULL_BITS or dtype == torch.bfloat16 or difference(found, wanted[row]) < 1e-6


@torch.no_grad()
def test_a_slot_out_of_place_would_show():
    torch.manual_seed(0)
    mixer = windows(8, 16)
    cache = filled(mixer, 16)
    seen = cache.layers[0].recurrent_states[0]
    values, heads = given(16, 16)
    output = mixer.attend(values, cache, seen, None, heads)[0]
    cache.layers[0].conv_states[1][-1] = cache.layers[0].conv_states[1][-1].roll(1, 0)
    seen[1] += 1
    wrong = expected(mixer, values, heads, cache, seen).flatten(1)
    assert difference(output[:1, 0].double(), wrong[:1]) < 1e-5  # neither row 0 nor a whole ring in another order
    assert difference(output[1:2, 0].double(), wrong[1:2]) > 0.01


@torch.no_grad()
def test_a_token_without_a_slot_is_refused():
    mixer = windows(4, 16)
    cache = filled(mixer, 16)
    cache.layers[0].recurrent_states[0][-1] = SINKS + 199  # the last slot of a ring of 200, of which there are fewer
    values, heads = given(16, 16)
    with pytest.raises(RuntimeError, match="has no slot"):
        mixer.attend(values, cache, cache.layers[0].recurrent_states[0], None, heads)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("dim", "rotated"), [(6, 6), (24, 0), (80, 32)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.01)])
@pytest.mark.parametrize("length", [1, 6, 40, 230])
@torch.no_grad()
def test_a_beginning_is_kept_and_attends(bits, dim, rotated, dtype, tolerance, length, monkeypatch):
    torch.manual_seed(0)
    mixer = windows(bits, dim).to(dtype)
    values, heads = given(dim, rotated, dtype, length)
    begin, calls = cpp_step.window_begin, []
    monkeypatch.setattr(
        cpp_step, "window_begin", lambda inputs: calls.append((inputs.slots, begin(inputs))) or calls[0][1]
    )
    output, seen = mixer.attend(values, None, None, None, heads)
    ((slots, (queries, entries)),) = calls
    assert output.dtype == queries.dtype == entries.dtype == dtype
    assert seen.tolist() == [[length]] * len(SEEN)
    turned, keys = rotate(heads.queries.transpose(1, 2).double(), heads.keys.transpose(1, 2).double(), exact(heads))
    keys = keys.transpose(1, 2) if mixer.center is None else keys.transpose(1, 2) - mixer.center
    given_entries = torch.cat([keys, values.unflatten(2, (3, dim)).double()], -1)
    ages = torch.arange(length).unsqueeze(1) - torch.arange(length)
    for group, (index, place, first, count, entry, query) in enumerate(mixer.places):
        window = mixer.windows[index]
        assert (
            difference(queries[:, :, query : query + count].double(), turned[:, first : first + count].transpose(1, 2))
            < tolerance
        )
        slot = torch.arange(length)
        slot = torch.where(slot < SINKS, slot, SINKS + (slot - SINKS) % window.tokens)
        held = [t for t in range(length) if t < SINKS or t >= length - window.tokens]
        parts = entries[:, :, entry].double().chunk(2, -1), given_entries[:, :, group].chunk(2, -1)
        if window.bits < FULL_BITS:
            parts = [[hadamard(x) for x in part] for part in parts]
        stored = numbers(slots[index][:, :, place], window.bits)
        for kept, wanted, in_slots in zip(*parts, stored, strict=True):
            step_width = 2 * wanted.abs().amax(-1, keepdim=True) / 2**window.bits
            rounding = 1e-5 if dtype == torch.float32 else 0.03
            assert ((kept - wanted).abs() <= 0.52 * step_width + 0.004 * wanted.abs() + rounding).all()
            assert in_slots.shape[1] == len(held)
            assert difference(in_slots[:, slot[held]], kept[:, held]) < tolerance
        keys, read = entries[:, :, entry].double().chunk(2, -1)
        scores = torch.einsum("blhd,bkd->bhlk", queries[:, :, query : query + count].double(), keys) / dim**0.5
        visible = (ages >= 0) & ((ages < window.tokens) | (torch.arange(length) < SINKS))
        truth = (scores.masked_fill(~visible, -torch.inf).softmax(-1) @ read.unsqueeze(1)).transpose(1, 2)
        assert difference(output.unflatten(2, (-1, dim))[:, :, first : first + count].double(), truth) < tolerance


@pytest.mark.parametrize("mixer", [RetentionMixer, WindowStateMixer])
@pytest.mark.parametrize(("dim", "rotated"), [(6, 6), (24, 0), (80, 32)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
@torch.no_grad()
def test_a_retention_advances_as_in_float64(mixer, dim, rotated, dtype, tolerance, monkeypatch):
    torch.manual_seed(0)
    sizes = SimpleNamespace(
        hidden_size=10, window_tokens=7, group_windows=None, group_bits=None, sink_tokens=SINKS, attention_dropout=0.0
    )
    block = mixer(sizes, LAYOUT, dim, 0).eval()
    block.gate.weight.normal_()
    twin = deepcopy(block).double()
    block.gate.to(dtype)
    step, called = cpp_step.retain_step, []
    monkeypatch.setattr(cpp_step, "retain_step", lambda *inputs: called.append(1) or step(*inputs))
    states = 3 * len(block.memories)
    packed = torch.rand(len(SEEN), 1 + states * dim * (dim + 1))
    state = packed[:, 1:].unflatten(1, (states, dim, dim + 1))
    exact_state = state.double()
    for _ in range(5):
        values, heads = given(dim, rotated, dtype)
        heads = heads._replace(hidden_states=torch.randn(len(SEEN), 1, 10, dtype=dtype))
        wide = ReplacedHeads(heads.hidden_states.double(), heads.queries.double(), heads.keys.double(), exact(heads))
        features, after = block.retain(values, state, None, heads)
        truth, exact_state = twin.retain(values.double(), exact_state, None, wide)
        assert after is state
        assert features.dtype == dtype
        assert difference(features.double(), truth) < tolerance
        assert difference(state.double(), exact_state) < tolerance
    assert len(called) == 5


@pytest.mark.parametrize("static", [False, True])
@torch.no_grad()
def test_models_decode_by_the_kernel_as_in_float64(static, monkeypatch):
    """Rings that turn, rows with padding, pieces of several tokens between steps."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=50, initializer_range=0.3,
    )  # fmt: skip
    sizes = [[5, 9, 3], [200, 5]]
    model = convert(
        LlamaForCausalLM(config), [[0, 1, 2, 3, 6], [1, 4, 5]], mixer="window", sink_tokens=SINKS, window_tokens=sizes
    ).eval()
    tokens, mask = torch.randint(50, (3, 40)), torch.ones(3, 40, dtype=torch.long)
    mask[0, :4] = mask[1, :6] = 0
    step, called = cpp_step.window_step, []

    def counted(inputs):
        output = step(inputs)
        called.append(output is not None)
        return output

    monkeypatch.setattr(cpp_step, "window_step", counted)
    logits = {}
    for dtype in (torch.float64, torch.float32):
        model = model.to(dtype)
        cache = StaticCache(config=model.config, max_cache_len=40) if static else DynamicCache(config=model.config)
        parts = [0, 7, 8, 9, 10, 14, *range(15, 41)]
        pieces = [
            model(tokens[:, i:j], attention_mask=mask[:, :j], past_key_values=cache).logits for i, j in pairwise(parts)
        ]
        logits[dtype] = torch.cat(pieces, 1).double()
    assert difference(logits[torch.float32][mask.bool()], logits[torch.float64][mask.bool()]) < 1e-4
    assert sum(called) == 2 * (3 + 26)
    assert all(called) == static  # slots that grow
    # without padding the beginning goes through the kernel too, unless a static cache has its slots already
    whole = [model.to(dtype)(tokens).logits.double() for dtype in (torch.float64, torch.float32)]
    assert difference(*whole) < 1e-4


@pytest.mark.parametrize("before", [1, 2, 3, 4, 126, 127, 128, 129])
@pytest.mark.parametrize("place", ["values", "keys"])
@torch.no_grad()
def test_an_infinite_number_goes_no_farther_than_in_torch(before, place):
    """In the last slot: what is read behind it counts for nothing."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 1, 2, 8), torch.randn(1, 1, 1, 8), torch.randn(1, 1, 8)
    keys, values = torch.randn(1, 1, before + 5, 8), torch.randn(1, 1, before + 5, 8)
    if place == "values":
        value[..., 0] = torch.inf
    else:
        query[..., 0], key[..., 0] = 1.0, -torch.inf  # a weight of 0, however low the other scores are
        keys[..., 0] -= 1000.0
    step = cpp_step.WindowStepInputs(
        query, key, value, None, None, ((0, 0, 0, 2, 0, 0),), seen=torch.full((1, 1), before), whole=(keys, values)
    )
    result = cpp_step.window_step(step).view(1, 1, 2, 8).transpose(1, 2)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2), keys[:, :, : before + 1], values[:, :, : before + 1], enable_gqa=True
    )
    torch.testing.assert_close(result, expected, equal_nan=True, atol=1e-4, rtol=1e-3)
