"""Windows under a budget of bytes: what the adapted model's cache really holds, and at which estimated cost."""

from contextlib import nullcontext
from functools import cache

import pandas as pd
import pytest
import torch

from recurformer.data.backbones import byte_tokenizer
from recurformer.heads.price import Keep, choices, key_centers, price
from recurformer.heads.probes import hidden_lookups, weighted
from recurformer.model.convert import convert
from recurformer.model.layout import sliding_layers
from recurformer.model.packed import BITS
from recurformer.recover import budget
from recurformer.recover.adapt import cache_bytes_of
from recurformer.recover.budget import (
    checked,
    choose_windows,
    convert_within,
    least_budget,
    price_list,
    refuse_budget,
    sizes_of,
)
from recurformer.recover.kept import KeptSteps
from recurformer.recover.pair import quality_rows
from recurformer.recover.recipe import BY_PRICE
from recurformer.recover.run import converted_by
from recurformer.study.method import NEEDLE_WEIGHT
from tests.model.tiny_models import make_backbone

LENGTH, SEED = 160, 3
WINDOWS = [16, 23, 32, 45, 64, 91, 128]
BACKBONES = ("llama_mha", "qwen2_gqa", "gemma3_text")
READER = byte_tokenizer()


@cache
def backbone(name):
    return make_backbone(name, vocab_size=len(READER))


@cache
def text():
    return torch.randint(3, len(READER), (5, LENGTH), generator=torch.Generator().manual_seed(0))


@cache
def least_of(name):
    """The least fraction that is accepted, as the refusal prints it, rounded up."""
    with pytest.raises(ValueError, match=r"windows of 16 tokens and .* in all heads need") as refused:
        refuse_budget(backbone(name), LENGTH, cache=1e-6)
    return float(str(refused.value).split("need ")[1].split()[0]) + 1e-4


def fractions_of(name):
    return [least_of(name), *(least_of(name) + (1 - least_of(name)) * share for share in (0.05, 0.3, 0.7))]


@cache
def prices_of(name):
    return price_list(backbone(name), READER, text(), SEED)


@cache
def chosen(name, fraction):
    return choose_windows(backbone(name), prices_of(name), text(), fraction, None)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_cache_of_the_adapted_model_keeps_within_the_budget(name):
    original, held = backbone(name), []
    for fraction in fractions_of(name):
        refuse_budget(original, LENGTH, cache=fraction)
        choice = chosen(name, fraction)
        adapted = converted_by(BY_PRICE, original, choice["heads"], SEED, **sizes_of(choice, original.config))
        (counted,) = cache_bytes_of(original, adapted, torch.bfloat16, [LENGTH])
        held.append(counted["adapted"] / counted["original"])
        assert held[-1] <= fraction
    assert held == sorted(held) and held[0] < held[-1]
    assert {window for layer in chosen(name, least_of(name))["windows"] for window in layer} <= {16, None}


def test_what_cannot_be_chosen_is_kept_by_default_and_named_where_a_budget_is_refused(monkeypatch):
    for name in BACKBONES:
        fraction = budget.default_budget(backbone(name), LENGTH)
        refuse_budget(backbone(name), LENGTH, cache=fraction)
        assert (fraction > 0.27) is (name == "gemma3_text")
    with pytest.raises(ValueError, match="cannot be chosen: layers with a sliding window of their own"):
        refuse_budget(backbone("gemma3_text"), LENGTH, cache=0.01)
    refuse_budget(backbone("gemma3_text"), LENGTH, loss=0.1)
    monkeypatch.setattr(budget, "FRACTIONS", [0.01])
    with pytest.raises(ValueError, match=r"^loss=0.1: windows of 16 tokens and 4 bits in all heads need 0"):
        refuse_budget(backbone("gemma3_text"), LENGTH, loss=0.1)


@pytest.mark.parametrize("name", BACKBONES)
def test_every_group_has_its_window_and_a_layer_that_slides_none(name):
    config, choice = backbone(name).config, chosen(name, fractions_of(name)[2])
    each = config.num_attention_heads // config.num_key_value_heads
    for layer, kept in enumerate(keeps_of(choice)):
        assert len(kept) == config.num_key_value_heads and {keep.window for keep in kept} <= {*WINDOWS, None}
        replaced = [group for group, keep in enumerate(kept) if keep != Keep()]
        assert choice["heads"][layer] == [group * each + head for group in replaced for head in range(each)]
        assert layer not in sliding_layers(config) or not replaced
    assert bool(sliding_layers(config)) is (name == "gemma3_text")


def keeps_of(choice):
    """What each group keeps, by layer."""
    return [list(map(Keep, *layer)) for layer in zip(choice["windows"], choice["bits"], strict=True)]


@pytest.mark.parametrize(("tokens", "lookups"), [(31, 1), (160, 5), (1000, 8), (2048, 16), (9000, 31)])
def test_a_long_text_has_as_many_lookups_as_the_vocabulary_allows(tokens, lookups):
    _, weights = budget.text_with_lookups(READER, torch.ones(1, tokens, dtype=torch.long), SEED, NEEDLE_WEIGHT)
    assert int((weights > 1.1 / (tokens - 1)).sum()) == lookups
    assert float(weights.sum()) == pytest.approx(1 + NEEDLE_WEIGHT, rel=0.05)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_estimated_cost_is_the_sum_of_the_prices_of_what_is_chosen(name):
    original, sample, fraction = backbone(name), text()[: budget.PRICED], fractions_of(name)[1]
    lookups = hidden_lookups(READER, sample, LENGTH // budget.APART, SEED)
    _, weights = weighted(lookups, NEEDLE_WEIGHT)
    settings = {"sink_tokens": BY_PRICE.sink_tokens, "centers": key_centers(original, sample[:1])}
    costs = torch.stack([
        price(original, lookups.input_ids[[one]], WINDOWS, BITS, weights[[one]], **settings, seed=SEED + one)
        for one in range(len(sample))
    ]).mean(0)  # fmt: skip
    choice, prices, expected = chosen(name, fraction), choices(WINDOWS, BITS), 0.0
    for layer, kept in enumerate(keeps_of(choice)):
        if layer not in sliding_layers(original.config):
            expected += sum(float(costs[layer, group, prices.index(keep)]) for group, keep in enumerate(kept))
    estimated = dict(choice["estimated"])
    assert estimated[fraction] == pytest.approx(expected, rel=1e-9)
    shown = [cost for _, cost in sorted(estimated.items())]
    assert shown == sorted(shown, reverse=True)  # more bytes cost no more
    assert set(estimated) == {fraction, *(one for one in budget.BUDGETS if one >= least_of(name))}


@pytest.mark.parametrize("name", ["llama_mha"])
def test_what_is_looked_up_counts(name):
    """By the prices on text alone other groups keep more: the same call without the needles chooses these."""
    fraction = fractions_of(name)[2]
    with_needles = chosen(name, fraction)
    prices = price_list(backbone(name), READER, text(), SEED, needle_weight=0.0)
    alone = choose_windows(backbone(name), prices, text(), fraction, None)
    assert alone["windows"] != with_needles["windows"]
    assert dict(alone["estimated"])[fraction] < dict(with_needles["estimated"])[fraction]


@pytest.mark.parametrize("tokens", [300, 600, 1000, 1024, 2000, 4096])
def test_the_least_that_can_be_bought_is_within_its_own_budget(tokens):
    """Its fraction of the cache, times the cache, may be too little by rounding."""
    prices = prices_of("llama_mha").assign(tokens=tokens)
    for choice in (prices, prices[prices.bits == 16], prices[prices.window.isna()]):
        least = budget.least_of(choice, backbone("llama_mha"))
        assert budget.spend(choice, backbone("llama_mha"), least).keeps
        with pytest.raises(ValueError, match="the least of what may be chosen needs"):
            budget.spend(choice, backbone("llama_mha"), least * 0.999)


def test_a_loss_takes_the_least_cache_that_keeps_to_it(monkeypatch):
    original, prices = backbone("qwen2_gqa"), prices_of("qwen2_gqa")
    fractions = [fraction for fraction in budget.FRACTIONS if fraction >= least_of("qwen2_gqa")]
    losses = {}
    for fraction in fractions:
        converted = convert_within(original, prices, prices, fraction)
        losses[fraction] = float(quality_rows(original, converted, text()[: budget.PRICED]).divergence.mean())
    for loss in (losses[fractions[1]], losses[fractions[5]], losses[fractions[-1]], 100.0):
        least = least_budget(original, prices, text(), loss)
        assert losses[least] <= loss
        assert least == fractions[0] or losses[fractions[fractions.index(least) - 1]] > loss
    with pytest.raises(ValueError, match=r"loss=1e-09: with 0.841 of the cache the divergence is"):
        least_budget(original, prices, text(), 1e-9)
    choice = choose_windows(original, prices, text(), None, losses[fractions[5]])
    assert choice["budget"] in fractions[:6] and dict(choice["estimated"])[choice["budget"]] > 0


def test_a_killed_price_list_goes_on(tmp_path, monkeypatch):
    kept, made = KeptSteps(tmp_path), []

    def counting(*args, **kwargs):
        if len(made) == 1 and killed:
            raise KeyboardInterrupt
        made.append(price(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(budget, "price", counting)
    for killed, calls in ((True, 1), (False, budget.PRICED), (False, budget.PRICED)):
        with pytest.raises(KeyboardInterrupt) if killed else nullcontext():
            prices = price_list(backbone("qwen2_gqa"), READER, text(), SEED, step=kept.result)
        assert len(made) == calls
    pd.testing.assert_frame_equal(prices, prices_of("qwen2_gqa"))


@pytest.mark.parametrize("name", BACKBONES)
def test_checked_prices_are_those_of_one_group_alone(name):
    """And nothing is measured but what is asked for."""
    model, prices = backbone(name), prices_of(name)
    rows = checked(model, prices, text()[:2], 6, SEED)
    pd.testing.assert_frame_equal(rows[[*prices]], prices)
    measured = rows.dropna(subset="divergence")
    assert len(measured) == 6 and (measured.divergence > 0).all()
    least = budget.least_of(prices, model)
    made = [budget.spend(prices, model, fraction).keeps for fraction in budget.BUDGETS if fraction >= least]
    for row in measured.itertuples():
        keep = Keep(None if pd.isna(row.window) else int(row.window), row.bits)
        assert keep in [keeps[row.layer][row.group] for keeps in made]
    each = model.config.num_attention_heads // model.config.num_key_value_heads
    heads = [[] for _ in range(model.config.num_hidden_layers)]
    for row in measured.itertuples():
        one = [
            list(range(row.group * each, (row.group + 1) * each)) if layer == row.layer else []
            for layer in range(len(heads))
        ]
        window = model.config.max_position_embeddings if pd.isna(row.window) else int(row.window)
        sizes = [[value] if layer == row.layer else [] for value in (window, row.bits) for layer in range(len(heads))]
        changed = convert(
            model, one, "window", window_tokens=sizes[: len(heads)], window_bits=sizes[len(heads) :],
            sink_tokens=budget.SINKS, key_centers=budget.centers_of(prices, model),
        )  # fmt: skip
        expected = quality_rows(model, changed, text()[:2]).divergence.mean()
        assert row.divergence == pytest.approx(float(expected), rel=1e-5)
