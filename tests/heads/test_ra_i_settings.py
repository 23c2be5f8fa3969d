"""How far the choice of heads depends on k and alpha, by hand."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from recurformer import HeadProfile, select_heads
from recurformer.heads.ra_i_settings import compare_settings, rank_correlation, replacement_ranks
from recurformer.heads.select import ra_i_scores


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
