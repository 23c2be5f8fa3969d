"""Which heads are chosen: by hand, as properties over arbitrary profiles, and how far k and alpha decide."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from recurformer import HeadProfile, select_heads
from recurformer.heads.select import (
    MEASURED,
    SELECTORS,
    chosen_heads,
    compare_settings,
    ra_i_scores,
    rank_correlation,
    rank_heads,
    replaced_count,
    replacement_ranks,
)
from recurformer.study.method import Selection


@st.composite
def profiles(draw) -> HeadProfile:
    layers, kv_heads, group = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rr = torch.rand(draw(st.integers(1, 6)), layers, kv_heads * group, generator=generator, dtype=torch.float64)
    if draw(st.booleans()):
        rr = (rr * 4).round() / 4  # many ties, which no rounding of their means breaks
    return HeadProfile(rr, window=5, threshold=0.5, exclude_first=True, kv_heads=kv_heads, tokens=32)


options = st.fixed_dictionaries(
    {
        "unit": st.sampled_from(["kv_group", "head", "layer"]),
        "scope": st.sampled_from(["global", "layer"]),
        "by": st.sampled_from(sorted({*SELECTORS, *MEASURED})),
        "seed": st.integers(0, 3),
    }
).filter(lambda option: not option["unit"] == option["scope"] == "layer")


def choose(profile: HeadProfile, beta: float, by: str, **option) -> list[list[int]]:
    """`select_heads`, with scores that have many ties where they are to be measured."""
    measured = (profile.rr[0] * 4).round() if by in MEASURED else None
    return select_heads(profile, beta, by=by, measured=measured, **option)


def pairs(heads: list[list[int]]) -> set[tuple[int, int]]:
    return {(layer, head) for layer, chosen in enumerate(heads) for head in chosen}


@given(profiles(), options, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_beta_chooses_a_superset(profile, option, one, other):
    low, high = sorted((one, other))
    assert pairs(choose(profile, low, **option)) <= pairs(choose(profile, high, **option))


@given(profiles(), options, st.floats(0, 1))
def test_counts_and_form(profile, option, beta):
    layers, heads = profile.shape
    chosen = choose(profile, beta, **option)
    assert len(chosen) == layers
    assert all(row == sorted(set(row)) and set(row) <= set(range(heads)) for row in chosen)
    units = {"kv_group": profile.kv_heads, "head": heads, "layer": 1}[option["unit"]]
    size = heads // units
    if option["scope"] == "layer":
        assert [len(row) for row in chosen] == [size * round(units * beta)] * layers
    else:
        assert sum(map(len, chosen)) == size * round(units * layers * beta)


@given(profiles(), options, st.floats(0, 1))
def test_groups_are_complete(profile, option, beta):
    size = profile.shape[1] // profile.kv_heads
    for row in choose(profile, beta, **{**option, "unit": "kv_group"}):
        groups = {head // size for head in row}
        assert row == [head for group in sorted(groups) for head in range(group * size, (group + 1) * size)]


@given(profiles(), st.floats(0, 1))
def test_chosen_heads_are_the_most_recency_aware(profile, beta):
    """Every chosen head has at least the RA-I of every other one; at equal RA-I at least its mean recency ratio."""
    chosen = pairs(select_heads(profile, beta, unit="head"))
    key = {
        (layer, head): (int(profile.ra_i[layer, head]), float(profile.mean_rr[layer, head]))
        for layer in range(profile.shape[0])
        for head in range(profile.shape[1])
    }
    worst = min((key[place] for place in chosen), default=None)
    best = max((key[place] for place in set(key) - chosen), default=None)
    if worst is not None and best is not None:
        assert worst[0] > best[0] or (worst[0] == best[0] and worst[1] >= best[1] - 1e-12)


@given(profiles(), options, st.floats(0, 1))
def test_layers_with_a_sliding_window_are_not_there_at_all(profile, option, beta):
    """The others' heads are chosen as if the model had no other layers."""
    rr = torch.stack([layer for one in profile.rr.unbind(1) for layer in (torch.full_like(one, torch.nan), one)], 1)
    sliding = tuple(range(0, rr.shape[1], 2))
    if option["by"] == "random" or option["by"] in MEASURED:
        option = {**option, "by": "ra_i"}
    chosen = select_heads(replace(profile, rr=rr, sliding=sliding), beta, **option)
    assert chosen[::2] == [[]] * len(sliding)
    assert chosen[1::2] == select_heads(profile, beta, **option)


def test_a_model_of_sliding_layers_only_is_refused():
    with pytest.raises(ValueError, match="every layer attends through a sliding window"):
        rank_heads(torch.full((2, 4), torch.nan), 2, 0.5, sliding=(0, 1))


MEASURED_SCORES = torch.tensor([[-3.0, -4.0, -2.0, 0.0], [-1.0, 0.0, -2.0, -2.0]])


def by_hand() -> HeadProfile:
    # RA-I over two samples; 2 layers of 4 heads, groups (0, 1) and (2, 3)
    rr = torch.tensor([[[0.9, 0.1, 0.8, 0.7], [0.2, 0.3, 0.6, 0.4]], [[0.9, 0.2, 0.7, 0.4], [0.1, 0.3, 0.55, 0.45]]])
    return HeadProfile(rr.double(), window=5, threshold=0.5, exclude_first=True, kv_heads=2, tokens=32)


@pytest.mark.parametrize(
    ("options", "beta", "expected"),
    [
        ({"unit": "head"}, 0.25, [[0, 2], []]),  # RA-I 2, 2, and 2: the mean ratio decides against layer 1
        ({"unit": "head"}, 0.375, [[0, 2], [2]]),
        ({"unit": "head", "scope": "layer"}, 0.25, [[0], [2]]),
        ({"unit": "kv_group"}, 0.25, [[2, 3], []]),  # mean RA-I 1.5 against 1, 0 and 1
        ({"unit": "kv_group"}, 0.5, [[0, 1, 2, 3], []]),  # 1 against 1: mean ratio 0.525 against 0.5
        ({"unit": "kv_group", "scope": "layer"}, 0.5, [[2, 3], [2, 3]]),
        ({"unit": "head", "by": "inverse_ra_i"}, 0.25, [[1], [0]]),
        ({"unit": "head", "by": "mean_rr"}, 0.375, [[0, 2], [2]]),
        ({"unit": "layer"}, 0.5, [[0, 1, 2, 3], []]),  # mean RA-I 1.25 against 0.5
        ({"unit": "layer", "by": "inverse_ra_i"}, 0.5, [[], [0, 1, 2, 3]]),
        ({"unit": "head", "by": "retrieval", "measured": MEASURED_SCORES}, 0.25, [[3], [1]]),
        ({"unit": "kv_group", "by": "echo", "measured": MEASURED_SCORES}, 0.25, [[], [0, 1]]),  # -0.5 against -1
        ({"unit": "layer", "by": "induction", "measured": MEASURED_SCORES}, 0.5, [[], [0, 1, 2, 3]]),
    ],
)
def test_choice_by_hand(options, beta, expected):
    assert select_heads(by_hand(), beta, **options) == expected


def test_equal_scores_go_in_order_of_layer_and_head():
    profile = HeadProfile(torch.full((1, 2, 4), 0.7), 5, 0.5, True, 4, 32)
    assert select_heads(profile, 0.625) == [[0, 1, 2, 3], [0]]
    large = HeadProfile(torch.full((1, 64, 32), 0.7), 5, 0.5, True, 32, 32)
    assert select_heads(large, 0.5) == [list(range(32))] * 32 + [[]] * 32


def test_mean_ratio_breaks_ties_only_also_between_groups():
    """One group exceeds the threshold once in ten samples, the other never but only just: RA-I decides."""
    rr = torch.zeros(10, 1, 6, dtype=torch.float64)
    rr[0, 0, 0] = 0.51
    rr[:, 0, 3:] = 0.5
    assert select_heads(HeadProfile(rr, 5, 0.5, True, 2, 32), 0.5) == [[0, 1, 2]]


def test_random_ranking_depends_on_the_seed_only():
    one, other = by_hand(), HeadProfile(torch.rand(3, 2, 4), 5, 0.5, True, 2, 32)
    assert select_heads(one, 0.5, by="random", seed=1) == select_heads(other, 0.5, by="random", seed=1)
    assert len({str(select_heads(one, 0.5, unit="head", by="random", seed=seed)) for seed in range(20)}) > 5


def test_the_group_where_the_mixer_costs_least_goes_first(tmp_path):
    """Of the file's first mixer; a layer with a sliding window of its own is not on the list, and stays."""
    profile = HeadProfile(torch.full((3, 3, 4), 0.7), 5, 0.5, True, 2, 32, sliding=(1,))
    profile.save(tmp_path / "profile.parquet")
    places = pd.DataFrame({"layer": [0, 0, 2, 2], "group": [0, 1, 0, 1]})
    costs = {"mamba": [0.3, 0.1, 0.2, 0.4], "window_state": [0.0, 1.0, 1.0, 1.0]}
    prices = pd.concat([places.assign(mixer=mixer, cost=of_mixer) for mixer, of_mixer in costs.items()])
    prices.to_parquet(tmp_path / "mixer_prices.parquet")

    def chosen(beta, place="mixer_prices.parquet"):
        files = str(tmp_path / "profile.parquet"), str(tmp_path / place)
        return chosen_heads(*files, Selection(by="mixer_price"), beta, seed=0)

    assert [chosen(beta) for beta in (0.25, 0.5, 0.75)] == [
        [[2, 3], [], []], [[2, 3], [], [0, 1]], [[0, 1, 2, 3], [], [0, 1]],
    ]  # fmt: skip
    prices[prices.layer == 0].to_parquet(tmp_path / "short.parquet")
    with pytest.raises(ValueError, match=r"prices of \(1, 2\) layers and KV heads, profile of \(2, 2\)"):
        chosen(0.5, "short.parquet")
    for name, rows in {"other": places, "empty": prices[:0]}.items():
        rows.to_parquet(tmp_path / f"{name}.parquet")
        with pytest.raises(ValueError, match=rf"{name}.parquet: no head scores written by `recurformer mixer-prices`"):
            chosen(0.5, f"{name}.parquet")


@pytest.mark.parametrize(
    ("units", "beta", "count"),
    [(1024, 0.9, 922), (1024, 0.25, 256), (2, 0.25, 0), (6, 0.25, 2), (4, 1.0, 4), (8, 0.9, 7)],
)
def test_rounding(units, beta, count):
    assert replaced_count(units, beta) == count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": -0.1}, r"beta=-0.1 must lie in \[0, 1\]"),
        ({"unit": "group"}, "unit='group' is unknown; choose one of kv_group, head, layer"),
        ({"unit": "layer", "scope": "layer"}, "scope='layer' takes a fraction of each layer, unit='layer'"),
        ({"scope": "model"}, "scope='model' is unknown; choose one of global, layer"),
        ({"by": "best"}, "by='best' is not a ranking; choose one of ra_i, mean_rr, random, inverse_ra_i, retrieval"),
        ({"by": "echo"}, "by='echo' needs scores that `recurformer head-scores`"),
        ({"by": "mixer_price"}, "by='mixer_price' needs scores that `recurformer mixer-prices`"),
        ({"by": "echo", "measured": torch.zeros(2, 5)}, r"by='echo': scores of \(2, 5\) layers and heads, profile of"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        select_heads(by_hand(), **{"beta": 0.5, **options})


def test_profiles_of_converted_models_are_refused():
    profile = by_hand()
    profile.rr[:, 1, 3] = float("nan")
    with pytest.raises(ValueError, match="layer 1 head 3 has no score"):
        select_heads(profile, 0.5, by="random")


def test_scores_need_whole_groups():
    with pytest.raises(ValueError, match="kv_heads=3 must divide the 4 heads"):
        rank_heads(torch.rand(2, 4), kv_heads=3, beta=0.5)


def random_profile(seed: int, window: int) -> HeadProfile:
    rr = torch.rand(5, 3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return HeadProfile(rr, window, 0.5, True, kv_heads=2, tokens=64, model="tiny")


@pytest.mark.parametrize("unit", ["kv_group", "head", "layer"])
def test_counts_are_those_of_the_selection(unit):
    default, other = random_profile(0, 8), random_profile(1, 16)
    frame = compare_settings([default, other], default, [0.3, 0.5], [0.25, 0.5, 1.0], [unit])
    assert len(frame) == 2 * 2 * 3 and set(frame.model) == {"tiny"}
    size = {"kv_group": 2, "head": 1, "layer": 4}[unit]
    for row in frame.itertuples():
        profile = {8: default, 16: other}[row.window].with_threshold(row.threshold)
        chosen, usual = (
            {(layer, head) for layer, heads in enumerate(select_heads(of, row.beta, unit)) for head in heads}
            for of in (profile, default)
        )
        assert (row.selected * size, row.shared * size) == (len(chosen), len(chosen & usual))
    itself = frame[(frame.window == 8) & (frame.threshold == 0.5)]
    assert (itself.shared == itself.selected).all()
    np.testing.assert_allclose(itself.rank_correlation, 1.0)


def test_correlation_is_spearmans():
    profiles = random_profile(0, 8), random_profile(1, 16)
    scores = [ra_i_scores(profile) for profile in profiles]
    ranks = [replacement_ranks(score, 2, "head") for score in scores]
    expected = spearmanr(*(score.flatten() for score in scores)).statistic
    assert rank_correlation(*ranks) == pytest.approx(expected)


def test_ties_are_broken_in_the_order_of_the_selection():
    assert replacement_ranks(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), 2, "head").tolist() == [2, 0, 1, 3]


def test_one_unit_has_no_correlation():
    assert np.isnan(rank_correlation(np.array([0]), np.array([0])))
