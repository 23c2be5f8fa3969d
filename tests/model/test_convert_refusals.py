"""Conversion: what is refused, and which layers stay as they are."""

import pytest
import torch
from tiny_models import BACKBONES, HEADS, MAMBA, difference, make_backbone, tokens
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, Olmo2Config, Olmo2ForCausalLM

from recurformer.model.config import CONFIGS, RecurFormerLlamaConfig
from recurformer.model.convert import convert
from recurformer.model.layout import check_stock
from recurformer.model.mixers import MIXERS


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([[], []], "heads names 2 layers, but the model has 3"),
        ([[], [6], []], r"heads\[1\] names head 6, but the layer's query heads are 0 to 5"),
        ([[0, 1, 0], [], []], r"heads\[0\] names head 0 twice"),
        ([[0.5], [], []], r"heads\[0\]=\[0.5\] must be a list"),
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


@pytest.mark.parametrize("backbone", ["qwen2_gqa", "smollm3"])
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


class PackedLinear(nn.Module):
    """Like GPTQ's and AWQ's: no weight, packed integers in buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("qweight", torch.zeros(6, 48, dtype=torch.int32))


def uint8_weight(model):
    model.lm_head.weight = nn.Parameter(torch.zeros(40, 48, dtype=torch.uint8), requires_grad=False)


def packed_layer(model):
    model.model.layers[1].self_attn.o_proj = PackedLinear()


@pytest.mark.parametrize(
    ("quantize", "message"),
    [
        (uint8_weight, "weights of type torch.uint8"),
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
        ({"mixer": "hyena"}, f"mixer='hyena' is unknown; there are {', '.join(MIXERS)}$"),
        ({"mamba_expand": 0}, "mamba_expand=0 must be a whole number of at least 1$"),
        ({"window_tokens": 0}, "window_tokens=0 must be a whole number of at least 1$"),
        ({"sink_tokens": -1}, "sink_tokens=-1 must be a whole number of at least 0$"),
        ({"recurrent_heads": [[0]]}, "heads names 1 layers, but the model has 32"),
        ({"sliding_window": 8}, "sliding_window=8"),
    ],
)
def test_config_refuses_in_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        RecurFormerLlamaConfig(**changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("config", [config for name, config in CONFIGS.items() if name != "gemma3_text"])
def test_config_survives_saving_and_reads_nothing_but_sliding_layers(config, tmp_path):
    made = config(num_hidden_layers=2, num_attention_heads=4, recurrent_heads=[[1], [0, 1, 2, 3]], layer_types=["x"])
    made.save_pretrained(tmp_path)
    loaded = config.from_pretrained(tmp_path)
    assert loaded.layer_types == ["hybrid", "linear_attention"]
    assert loaded.recurrent_heads == [[1], [0, 1, 2, 3]] and loaded.sliding_window is None
    assert config().recurrent_heads == [[]] * config().num_hidden_layers
    assert MistralConfig().sliding_window == 4096  # the stock default stays
