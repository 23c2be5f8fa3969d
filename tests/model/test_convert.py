"""Conversion: which weights go where, what is kept, what is refused."""

import copy
import sys
import time

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import (
    ALL,
    BACKBONES,
    HEADS,
    MAMBA,
    MATRIX,
    PAIRS,
    difference,
    make_backbone,
    make_converted,
    tokens,
)
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedConfig,
)
from transformers.models.llama.modeling_llama import repeat_kv

from recurformer.model.config import CONFIGS, RecurFormerLlamaConfig
from recurformer.model.convert import convert, split_weights
from recurformer.model.layout import head_layout
from recurformer.model.stock import check_stock

PROJECTIONS = ("q", "k", "v")


def rows(heads, head_dim):
    return [head * head_dim + row for head in heads for row in range(head_dim)]


def merge_weights(state: dict[str, Tensor], original: dict[str, Tensor], config: PreTrainedConfig) -> dict[str, Tensor]:
    """Undo `split_weights`; the queries and keys that it dropped come from `original`."""
    merged = {name: tensor for name, tensor in state.items() if ".mamba." not in name}
    head_dim = config.hidden_size // config.num_attention_heads
    for index, replaced in enumerate(config.recurrent_heads):
        if not replaced:
            continue
        layout = head_layout(replaced, config.num_attention_heads, config.num_key_value_heads)
        kept = (layout.retained, layout.kv_heads[: layout.attended_kv_heads], layout.kv_heads)
        prefix = f"model.layers.{index}.self_attn."
        for projection, heads in zip(PROJECTIONS, kept, strict=True):
            for part in ("weight", "bias"):
                name = f"{prefix}{projection}_proj.{part}"
                if name in original:
                    merged[name] = original[name].clone()
                    if heads:
                        merged[name][rows(heads, head_dim)] = state[name]
        name = f"{prefix}o_proj.weight"
        merged[name] = torch.full_like(state[name], float("nan"))
        merged[name][:, rows([*layout.retained, *layout.replaced], head_dim)] = state[name]
    return merged


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
    assert [layout.kv_heads[p] for p in layout.value_head_of_retained] == [h // group for h in layout.retained]
    assert [layout.kv_heads[p] for p in layout.value_head_of_replaced] == [h // group for h in layout.replaced]
    width = max(layout.group_sizes, default=1)
    assert [p // width for p in layout.padded_position_of_retained] == layout.value_head_of_retained
    assert len(set(layout.padded_position_of_retained)) == len(layout.retained)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), backbone=st.sampled_from([name for name in BACKBONES if name not in dict(PAIRS)]))
def test_slicing_and_merging_back_restores_the_original(data, backbone):
    base = make_backbone(backbone)
    heads = [sorted(data.draw(st.sets(st.sampled_from(ALL)))) for _ in range(3)]
    model = convert(base, heads, **MAMBA)
    original = base.state_dict()
    merged = merge_weights(model.state_dict(), original, model.config)
    assert merged.keys() == original.keys()
    assert all(torch.equal(merged[name], original[name]) for name in original)
    complement = [sorted(set(ALL) - set(layer)) for layer in heads]
    other = split_weights(original, convert(base, complement, **MAMBA).config)
    for index, (gone, kept) in enumerate(zip(heads, complement, strict=True)):
        name = f"model.layers.{index}.self_attn.q_proj.weight"
        if gone and kept:  # every row of the query projection is in exactly one of the two
            both = torch.cat([model.state_dict()[name], other[name]])
            assert torch.equal(both[np.argsort(rows([*kept, *gone], 8))], original[name])


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


def reading_every_copy(block, groups, head_dim):
    """The Mamba block over the values of every replaced head, in groups of copies: each has a share of the weights."""
    wide, columns, distinct = copy.deepcopy(block), block.in_proj.weight.unflatten(1, (-1, head_dim)), sorted({*groups})
    shares = [columns[:, distinct.index(group)] / groups.count(group) for group in groups]
    wide.in_proj.weight = nn.Parameter(torch.stack(shares, 1).flatten(1))
    return wide


def queries_keys_values(stock, x, cos_sin, head_dim=8):
    """What a stock layer attends with, (B, heads, L, head_dim), by its own family's code."""
    if hasattr(stock, "qkv_proj"):
        parts = stock.qkv_proj(x).split([6 * head_dim, 2 * head_dim, 2 * head_dim], -1)
    else:
        parts = [getattr(stock, f"{p}_proj")(x) for p in PROJECTIONS]
    q, k, v = (part.unflatten(-1, (-1, head_dim)).transpose(1, 2) for part in parts)
    if hasattr(stock, "q_norm"):
        q, k = stock.q_norm(q), stock.k_norm(k)
    if getattr(stock, "use_rope", True):
        q, k = sys.modules[type(stock).__module__].apply_rotary_pos_emb(q, k, *cos_sin)
    return q, k, v


def algorithm_one(stock, converted, x, cos_sin, replaced, head_dim=8):
    """One layer of the paper's Algorithm 1, written from the stock weights, head by head."""
    batch, length, _ = x.shape
    q, k, v = queries_keys_values(stock, x, cos_sin)
    group = q.shape[1] // k.shape[1]
    k, v = repeat_kv(k, group), repeat_kv(v, group)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=stock.scaling)
    values = v[:, replaced].transpose(1, 2).flatten(2)
    mamba = reading_every_copy(converted.mamba, [head // group for head in replaced], head_dim)
    recurrent = mamba(values).view(batch, length, len(replaced), head_dim).transpose(1, 2)
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


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_decoding_with_ragged_groups_equals_a_full_forward(implementation):
    model = make_converted("qwen2_gqa", "ragged")
    model.set_attn_implementation(implementation)
    ids = tokens(2, 12)
    full = model(ids, use_cache=False, output_attentions=implementation == "eager")
    cache = model(ids[:, :8], use_cache=True).past_key_values
    for position in range(8, 12):
        step = model(
            ids[:, position : position + 1],
            past_key_values=cache,
            use_cache=True,
            output_attentions=implementation == "eager",
        )
        assert difference(step.logits[:, 0], full.logits[:, position]) < 1e-5
        for weights, expected in zip(step.attentions or (), full.attentions or (), strict=True):
            assert weights.shape[1] == expected.shape[1]
            assert difference(weights[:, :, 0], expected[:, :, position, : position + 1]) < 1e-5


def test_gradients_of_the_original_are_untouched():
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


def test_seven_billion_parameters_convert_on_the_meta_device():
    with torch.device("meta"):
        base = LlamaForCausalLM(LlamaConfig()).to(torch.bfloat16)
    start = time.perf_counter()
    model = convert(base, [list(range(0, 32, 2))] * 32)
    logits = model(torch.zeros(1, 10_000, dtype=torch.long, device="meta")).logits
    assert time.perf_counter() - start < 20
    assert logits.shape == (1, 10_000, 32_000)
    assert all(p.is_meta and p.dtype == torch.bfloat16 for p in model.parameters())


@pytest.mark.parametrize(("backbone", "heads"), dict(MATRIX).items())
def test_shapes_on_meta_are_those_of_a_real_conversion(backbone, heads):
    with torch.device("meta"):
        model = convert(BACKBONES[backbone][0](BACKBONES[backbone][1]()), HEADS[heads], **MAMBA)
    real = make_converted(backbone, heads).state_dict()
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == {n: t.shape for n, t in real.items()}


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([[], []], "heads names 2 layers, but the model has 3"),
        ([[], [6], []], r"heads\[1\] names head 6, but the layer's query heads are 0 to 5"),
        ([[], [], [-1]], r"heads\[2\] names head -1"),
        ([[0, 1, 0], [], []], r"heads\[0\] names head 0 twice"),
        ([[0.5], [], []], r"heads\[0\]=\[0.5\] must be a list"),
        ([0, 1, 2], r"heads\[0\]=0 must be a list"),
    ],
)
def test_wrong_heads_are_refused_in_one_line(heads, message):
    with pytest.raises(ValueError, match=message) as error:
        convert(make_backbone("llama_mha"), heads)
    assert "\n" not in str(error.value)


def test_wrong_models_are_refused():
    base = make_backbone("llama_mha")
    with pytest.raises(ValueError, match=r"converted one already \(recurformer_llama\)"):
        convert(convert(base, HEADS["mixed"]), HEADS["mixed"])
    with pytest.raises(
        ValueError, match=r"'gpt2' is not supported: .*; supported are gemma, .*, qwen3, smollm3$"
    ) as error:
        convert(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=10)), [[0]])
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="LlamaModel has no language-model head"):
        convert(base.model, HEADS["mixed"])
    with pytest.raises(ValueError, match="sliding_window=16 is not supported"):
        convert(make_backbone("mistral_gqa", sliding_window=16), HEADS["mixed"])
    wide = convert(make_backbone("mistral_gqa", sliding_window=64, max_position_embeddings=64), HEADS["mixed"])
    assert wide.config.sliding_window is None, "a window that all positions fit in hides nothing"
    base.lm_head.to("meta")
    with pytest.raises(ValueError, match="offloaded"):
        convert(base, HEADS["mixed"])


SIZES = {"vocab_size": 40, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 6}


def test_norms_over_all_heads_are_refused():
    model = Olmo2ForCausalLM(Olmo2Config(**SIZES, pad_token_id=None))
    with pytest.raises(ValueError, match="'olmo2' is not supported: it normalises queries and keys over all heads"):
        convert(model, [[0]])
    with pytest.raises(ValueError, match="q_norm of layer 0 normalises 48 features, not the 8 of a head"):
        check_stock(model.model.layers[0].self_attn, 0)


def test_a_part_of_attention_that_is_not_known_is_refused():
    model = make_backbone("llama_mha")
    model.model.layers[1].self_attn.gate = nn.Linear(48, 6)
    with pytest.raises(ValueError, match="gate of layer 1, a Linear, cannot be split by heads"):
        convert(model, HEADS["mixed"])
    del model.model.layers[1].self_attn.gate
    model.model.layers[1].self_attn.sinks = nn.Parameter(torch.zeros(6))
    with pytest.raises(ValueError, match="sinks of layer 1 cannot be split by heads"):
        convert(model, HEADS["mixed"])


def test_layers_with_a_sliding_window_stay_as_they_are():
    base = make_backbone("gemma3_text")
    with pytest.raises(
        ValueError, match=r"heads\[1\] names head 0, but layer 1 .* replace heads of layers 0, 2$"
    ) as error:
        convert(base, [[], [0], []])
    assert "\n" not in str(error.value)
    model = convert(base, HEADS["mixed"])
    assert type(model.model.layers[1].self_attn) is type(base.model.layers[1].self_attn)
    assert model.config.layer_types == ["hybrid", "sliding_attention", "linear_attention"]
    with pytest.raises(ValueError, match="use_bidirectional_attention=True is not supported"):
        convert(make_backbone("gemma3_text", use_bidirectional_attention=True), HEADS["mixed"])


@pytest.mark.parametrize("backbone", ["qwen2_gqa", "qwen3", "smollm3"])
def test_sliding_layers_of_other_families_stay_too(backbone):
    model_class, make_config = BACKBONES[backbone]
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    sliding = {"use_sliding_window": True, "sliding_window": 4, "layer_types": kinds}
    config = type(make_config())(**make_config().to_dict() | sliding)
    base, ids = model_class(config).eval(), tokens(2, 15)
    assert torch.equal(convert(base, [[], [], []])(ids).logits, base(ids).logits)
    wide = convert(base, HEADS["mixed"], "window", window_tokens=15)
    assert wide.config.layer_types[1] == "sliding_attention"
    assert difference(wide(ids).logits, base(ids).logits) < 1e-5


class Int8Tensor(Tensor):
    """Like torchao's: rows of int8 with scales behind the shape and dtype of the weight, and no way to take rows."""

    @staticmethod
    def __new__(cls, shape):
        return Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bfloat16)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        if function in {torch.ops.aten.detach.default, torch.ops.aten.clone.default}:
            return cls(arguments[0].shape)
        raise IndexError("index 8 is out of bounds for dimension 0 with size 1")


class PackedLinear(nn.Module):
    """Like GPTQ's and AWQ's: no weight, packed integers in buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("qweight", torch.zeros(6, 48, dtype=torch.int32))


def uint8_weight(model):
    model.lm_head.weight = nn.Parameter(torch.zeros(40, 48, dtype=torch.uint8), requires_grad=False)


def weight_subclass(model):
    model.model.layers[1].self_attn.v_proj.weight = nn.Parameter(Int8Tensor((16, 48)), requires_grad=False)


def packed_layer(model):
    model.model.layers[1].self_attn.o_proj = PackedLinear()


@pytest.mark.parametrize(
    ("quantize", "message"),
    [
        (uint8_weight, "weights of type torch.uint8"),
        (weight_subclass, "weights of type Int8Tensor"),
        (packed_layer, "o_proj of layer 1 is a PackedLinear, not an ordinary linear layer"),
    ],
)
def test_quantized_models_are_refused(quantize, message):
    model = make_backbone("qwen2_gqa")
    quantize(model)
    with pytest.raises(ValueError, match=rf"{message}.* without quantization before converting") as error:
        convert(model, HEADS["ragged"], **MAMBA)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mamba_expand": 0}, "mamba_expand=0 must be a whole number of at least 1"),
        ({"recurrent_heads": [[0]]}, "heads names 1 layers, but the model has 32"),
        ({"sliding_window": 8}, "sliding_window=8"),
    ],
)
def test_config_refuses_in_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        RecurFormerLlamaConfig(**changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["x", 1.5, True])
def test_config_refuses_wrong_types_by_name(value):
    with pytest.raises(StrictDataclassFieldValidationError, match="mamba_d_state"):
        RecurFormerLlamaConfig(mamba_d_state=value)


@pytest.mark.parametrize("config", [config for name, config in CONFIGS.items() if name != "gemma3_text"])
def test_config_survives_saving_and_reads_nothing_but_sliding_layers(config, tmp_path):
    made = config(num_hidden_layers=2, num_attention_heads=4, recurrent_heads=[[1], [0, 1, 2, 3]], layer_types=["x"])
    made.save_pretrained(tmp_path)
    loaded = config.from_pretrained(tmp_path)
    assert loaded.layer_types == ["hybrid", "linear_attention"]
    assert loaded.recurrent_heads == [[1], [0, 1, 2, 3]] and loaded.sliding_window is None
    assert config().recurrent_heads == [[]] * config().num_hidden_layers
    assert MistralConfig().sliding_window == 4096  # the stock default stays
