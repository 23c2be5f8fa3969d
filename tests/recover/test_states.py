"""Mixers in the place of single groups: priced as windows are, solved alone, and set beside as many bytes of tokens."""

import pandas as pd
import pytest
import torch

from recurformer.data.backbones import byte_tokenizer
from recurformer.heads.price import Keep, price
from recurformer.model.convert import convert
from recurformer.model.layout import sliding_layers
from recurformer.recover.budget import SINKS, price_list
from recurformer.recover.calibrate import calibrate
from recurformer.recover.states import COLUMNS, price_mixer, price_mixers
from tests.model.tiny_models import LAYERS, make_backbone, tokens

LENGTH, SEED = 160, 3
READER = byte_tokenizer()


def heads_in(model, layers):
    heads = list(range(model.config.num_attention_heads))
    return [heads if layer in layers else [] for layer in range(LAYERS)]


@pytest.mark.parametrize("backbone", ["llama_mha", "qwen2_gqa", "granite", "gemma3_text"])
def test_a_window_costs_as_a_mixer_what_it_costs_as_a_mask(backbone):
    model, input_ids = make_backbone(backbone).double(), tokens(2, 60)
    layers = sorted(set(range(LAYERS)) - {1, *sliding_layers(model.config)})
    weights = torch.rand(2, 60, generator=torch.Generator().manual_seed(0))
    converted = convert(model, heads_in(model, layers), "window", window_tokens=9, sink_tokens=SINKS)
    costs = price_mixer(model, converted, input_ids, weights)
    expected = price(model, input_ids, [9], weights=weights, sink_tokens=SINKS)[..., 0]
    torch.testing.assert_close(costs[layers], expected[layers], atol=1e-12, rtol=1e-5)
    assert costs[layers].min() > 0
    assert costs[sorted(set(range(LAYERS)) - set(layers))].isnan().all()


def test_only_whole_groups_are_priced():
    model = make_backbone("qwen2_gqa")
    each = model.config.num_attention_heads // model.config.num_key_value_heads
    one_group = convert(model, [list(range(each, 2 * each)), [], []], "window", window_tokens=9)
    costs = price_mixer(model, one_group, tokens(1, 60))
    assert costs.isnan().tolist() == [[True, False]] + [[True, True]] * 2
    with pytest.raises(ValueError, match="layer 0 replaces a part of a group"):
        price_mixer(model, convert(model, [[0], [], []], "window", window_tokens=9), tokens(1, 60))


def test_a_layer_is_solved_alone_as_if_no_other_were_converted():
    model, text = make_backbone("qwen2_gqa").double(), tokens(6, 60)
    together, single = (
        convert(model, heads_in(model, layers), "retention") for layers in (range(LAYERS), [LAYERS - 1])
    )
    for converted, alone in ((together, True), (single, False)):
        calibrate(model, converted, text, alone=alone)
    readouts = [model.model.layers[-1].self_attn.mixer.readout.weight for model in (together, single)]
    torch.testing.assert_close(*readouts)
    calibrate(model, together, text)
    assert not torch.allclose(readouts[0], readouts[1], rtol=1e-3)


@pytest.mark.parametrize("backbone", ["qwen2_gqa", "gemma3_text"])
def test_mixers_stand_beside_the_best_tokens_of_as_many_bytes(backbone):
    model = make_backbone(backbone, vocab_size=len(READER))
    text = torch.randint(3, len(READER), (10, LENGTH), generator=torch.Generator().manual_seed(0))
    prices = price_list(model, READER, text, SEED)
    rows = price_mixers(model, READER, text, ["mamba", "window_state"], prices, SEED)
    assert list(rows.columns) == COLUMNS and not set(rows.layer) & set(sliding_layers(model.config))
    assert len(rows) == 2 * len(prices[["layer", "group"]].drop_duplicates())
    dim = model.model.layers[0].self_attn.head_dim
    for row in rows.itertuples():
        group = prices[(prices.layer == row.layer) & (prices.group == row.group)]
        held = [
            Keep(None if pd.isna(one.window) else int(one.window), one.bits).bytes(LENGTH, dim, SINKS)
            for one in group.itertuples()
        ]
        fits = group[[size <= row.bytes for size in held]]
        assert len(fits) and row.tokens_cost == fits.cost.min()
    # of Mamba: 4 values of bfloat16 and 16 states of float32 for twice as many features as the layer has, by group
    groups, each = model.config.num_key_value_heads, model.config.num_attention_heads * dim * 2
    (size,) = rows[rows.mixer == "mamba"].bytes.unique()
    assert size == each * (4 * 2 + 16 * 4) / groups
    assert rows.groupby("layer").error.nunique().eq(2).all() and rows.error.gt(0).all()
    cost = rows.groupby("mixer").cost.sum()
    assert cost["window_state"] < cost["mamba"]  # a window of 64 of 160 tokens, and a state beside
