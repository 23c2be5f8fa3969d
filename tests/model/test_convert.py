"""Conversion: which rows and columns of the weights go where, what is kept, what is refused."""

import copy
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import BACKBONES, HEADS, MAMBA, MATRIX, difference, make_backbone, make_converted, tokens
from torch import nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import repeat_kv

from recurformer.model.convert import convert
from recurformer.model.layout import head_layout

HEAD_DIM = 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_no_replaced_head_equals_the_original_bit_for_bit(backbone, dtype):
    base = make_backbone(backbone).to(dtype)
    model = convert(base, [[], [], []])
    ids = tokens(2, 20)
    assert torch.equal(model(ids).logits, base(ids).logits)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    assert torch.equal(model(ids, attention_mask=mask).logits, base(ids, attention_mask=mask).logits)
    arguments = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.generate(ids, **arguments), base.generate(ids, **arguments))


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 16}
ROPES = {
    "llama_mha": DYNAMIC,
    "qwen2_gqa": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, **FACTORS},
    "gemma3_text": {"full_attention": DYNAMIC, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
}


@pytest.mark.parametrize(("backbone", "rope"), ROPES.items())
@pytest.mark.parametrize("heads", [[[], [], []], [[0, 1], [], [0, 1, 2, 3, 4, 5]]])
@torch.no_grad()
def test_rotary_frequencies_that_grew_with_a_text_go_on_as_the_originals(backbone, rope, heads):
    """Before and after the conversion both read long and short texts; a wide window is the original."""
    base = make_backbone(backbone, max_position_embeddings=16, rope_parameters=rope)
    base(tokens(1, 40))
    model = convert(base, heads, "window", window_tokens=64)
    for length in (30, 8, 40, 20, 9):
        assert difference(model(tokens(1, length)).logits, base(tokens(1, length)).logits) < 1e-5, length


def reading_every_copy(block, groups):
    """The Mamba block over the values of every replaced head, in groups of copies: each has a share of the weights."""
    wide, columns, distinct = copy.deepcopy(block), block.in_proj.weight.unflatten(1, (-1, HEAD_DIM)), sorted({*groups})
    shares = [columns[:, distinct.index(group)] / groups.count(group) for group in groups]
    wide.in_proj.weight = nn.Parameter(torch.stack(shares, 1).flatten(1))
    return wide


def queries_keys_values(stock, x, cos_sin):
    """What a stock layer attends with, (B, heads, L, head_dim), by its own family's code."""
    if hasattr(stock, "qkv_proj"):
        parts = stock.qkv_proj(x).split([6 * HEAD_DIM, 2 * HEAD_DIM, 2 * HEAD_DIM], -1)
    else:
        parts = [getattr(stock, f"{p}_proj")(x) for p in "qkv"]
    q, k, v = (part.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for part in parts)
    if hasattr(stock, "q_norm"):
        q, k = stock.q_norm(q), stock.k_norm(k)
    if getattr(stock, "use_rope", True):
        q, k = sys.modules[type(stock).__module__].apply_rotary_pos_emb(q, k, *cos_sin)
    return q, k, v


def algorithm_one(stock, converted, x, cos_sin, replaced):
    """One layer of the paper's Algorithm 1, written from the stock weights, head by head."""
    batch, length, _ = x.shape
    q, k, v = queries_keys_values(stock, x, cos_sin)
    group = q.shape[1] // k.shape[1]
    k, v = repeat_kv(k, group), repeat_kv(v, group)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=stock.scaling)
    values = v[:, replaced].transpose(1, 2).flatten(2)
    mamba = reading_every_copy(converted.mamba, [head // group for head in replaced])
    recurrent = mamba(values).view(batch, length, len(replaced), HEAD_DIM).transpose(1, 2)
    mixed = mixed.index_copy(1, torch.tensor(replaced), recurrent)
    return stock.o_proj(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("backbone", "heads"), MATRIX)
def test_every_layer_computes_algorithm_one(backbone, heads):
    base, model = make_backbone(backbone), make_converted(backbone, heads)
    x = torch.randn(2, 15, 48)
    kinds = ["full_attention"] if backbone == "gemma3_text" else []
    cos_sin = base.model.rotary_emb(x, torch.arange(15).unsqueeze(0), *kinds)
    for index, replaced in enumerate(HEADS[heads]):
        stock, converted = base.model.layers[index].self_attn, model.model.layers[index].self_attn
        if replaced:
            result, _ = converted(x, cos_sin)
            assert difference(result, algorithm_one(stock, converted, x, cos_sin, replaced)) < 1e-5


def test_eager_decoding_with_ragged_groups_equals_a_full_forward():
    model, ids = make_converted("qwen2_gqa", "ragged"), tokens(2, 12)
    model.set_attn_implementation("eager")
    full = model(ids, use_cache=False, output_attentions=True)
    cache = model(ids[:, :8], use_cache=True).past_key_values
    for position in range(8, 12):
        step = model(ids[:, position : position + 1], past_key_values=cache, output_attentions=True)
        assert difference(step.logits[:, 0], full.logits[:, position]) < 1e-5
        for weights, expected in zip(step.attentions, full.attentions, strict=True):
            assert difference(weights[:, :, 0], expected[:, :, position, : position + 1]) < 1e-5


def test_the_original_is_untouched():
    base = make_backbone("llama_mha")
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    model = convert(base, HEADS["mixed"], **MAMBA)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())


def test_what_is_kept():
    base = make_backbone("llama_gqa_tied").to(torch.bfloat16).train()
    base.set_attn_implementation("eager")
    base.generation_config.temperature = 0.7
    base.config.quantization_config = {"quant_method": "gguf"}
    model = convert(base, HEADS["mixed"], **MAMBA)
    assert (model.dtype, model.training, model.device) == (torch.bfloat16, True, base.device)
    assert model.generation_config.temperature == 0.7 and model.generation_config is not base.generation_config
    assert model.config._attn_implementation == "eager"
    assert not hasattr(model.config, "quantization_config")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not convert(base.eval(), HEADS["mixed"]).training
    assert model.config.layer_types == ["hybrid", "full_attention", "linear_attention"]
    assert convert(base, HEADS["beta_one"]).config.layer_types == ["hybrid", *["linear_attention"] * 2]
    sizes = model.model.layers[0].self_attn.mamba.A_log.shape
    assert sizes == (2 * 3 * 8, 4)


def test_conversion_is_seeded():
    base = make_backbone("llama_mha")
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(convert(base, HEADS["mixed"], **MAMBA).state_dict())
    name = "model.layers.0.self_attn.mamba.in_proj.weight"
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0][name], states[2][name])


def every_value_head_for_itself(base):
    """The same function with as many key-value heads as query heads."""
    state, config = base.state_dict(), copy.deepcopy(base.config)
    group, config.num_key_value_heads = config.num_attention_heads // config.num_key_value_heads, 6
    for name, tensor in state.items():
        if ".k_proj." in name or ".v_proj." in name:
            state[name] = tensor.unflatten(0, (-1, 8)).repeat_interleave(group, 0).flatten(0, 1)
    twin = type(base)(config)
    twin.load_state_dict(state)
    return twin.eval()


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("backbone", [name for name in BACKBONES if "gqa" in name])
def test_a_value_head_enters_once_and_starts_as_all_its_copies(backbone, heads):
    base = make_backbone(backbone)
    results = []
    for model in (base, every_value_head_for_itself(base)):
        torch.manual_seed(0)
        results.append(convert(model, HEADS[heads], **MAMBA))
    grouped, single = (model(tokens(2, 15)).logits for model in results)
    assert difference(grouped, single) < 2e-5
    for index, replaced in enumerate(HEADS[heads]):
        if replaced:
            layer = results[0].model.layers[index].self_attn
            distinct = {head // layer.layout.queries_per_kv_head for head in replaced}
            assert type(layer.mamba.in_proj) is nn.Linear
            assert layer.mamba.in_proj.in_features == 8 * len(distinct)


def test_heads_may_be_any_integers():
    heads = [np.array([2, 0]), torch.tensor([1]), (5,)]
    assert convert(make_backbone("llama_mha"), heads).config.recurrent_heads == [[0, 2], [1], [5]]


@settings(max_examples=100, deadline=None)
@given(data=st.data(), kv_heads=st.integers(1, 4), group=st.integers(1, 4))
def test_a_head_set_and_its_complement_partition_the_heads(data, kv_heads, group):
    heads = kv_heads * group
    replaced = data.draw(st.sets(st.integers(0, heads - 1)))
    layout = head_layout(sorted(replaced), heads, kv_heads)
    complement = head_layout(sorted(set(range(heads)) - replaced), heads, kv_heads)
    assert layout.retained == complement.replaced and layout.replaced == complement.retained
    assert sorted(layout.retained + layout.replaced) == list(range(heads))
    assert sorted(layout.kv_heads) == list(range(kv_heads))  # values of every KV head are needed
    attended = set(layout.kv_heads[: layout.attended_kv_heads])
    assert attended == {head // group for head in layout.retained}
    freed = [g for g in range(kv_heads) if {g * group + member for member in range(group)} <= replaced]
    assert set(layout.kv_heads[layout.attended_kv_heads :]) == set(freed)
    for kv_head, (start, stop) in zip(layout.kv_heads, layout.query_spans, strict=False):
        assert {head // group for head in layout.retained[start:stop]} == {kv_head}
    assert [place for span in layout.replaced_spans for place in range(*span)] == list(layout.replaced_value_heads)
    assert [layout.kv_heads[p] for p in layout.value_head_of_replaced] == [h // group for h in layout.replaced]
