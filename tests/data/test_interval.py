import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from recurformer.data.interval import bounded_mean, mean_interval


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_interval_holds_the_mean_and_stays_in_bounds(scores):
    mean, low, high = bounded_mean(scores)
    assert 0 <= low <= mean <= high <= 1


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 10, 256])
def test_equal_scores_never_give_an_empty_interval(value, n):
    mean, low, high = bounded_mean([value] * n)
    assert mean == value and high - low > 1 / (n + 10)


def test_agrees_with_wilson_for_coins():
    """For exact/not exact scores and large n this is Wilson's interval (30 of 1,000: 0.0211 to 0.0425)."""
    low, high = bounded_mean([1.0] * 30 + [0.0] * 970)[1:]
    assert low == pytest.approx(0.02111, abs=1e-4) and high == pytest.approx(0.04250, abs=1e-4)


@pytest.mark.parametrize(("success", "graded"), [(0.5, False), (0.95, False), (0.9, True), (0.99, True)])
def test_covers_the_true_mean(success, graded):
    """95 % intervals of 256 samples hold the truth in about 95 % of 800 experiments, also close to 1."""
    rng = np.random.default_rng(0)
    hops = 16
    hits = 0
    # A chain goes on with probability `success` a hop; its expected length is a geometric sum.
    truth = sum(success**hop for hop in range(1, hops + 1)) / hops if graded else success
    for _ in range(800):
        steps = rng.random((256, hops)) < success
        scores = np.cumprod(steps, axis=1).mean(axis=1) if graded else steps[:, 0].astype(float)
        _, low, high = bounded_mean(scores)
        hits += low <= truth <= high
    assert hits / 800 > 0.925


@pytest.mark.parametrize(("spread", "least"), [(0.0, 0.925), (0.1, 0.88)])
def test_covers_the_true_mean_over_seeds(spread, least):
    """Three seeds of 200 coins each, whose probabilities differ; an interval over the samples alone is too short."""
    rng, hits, alone = np.random.default_rng(0), 0, 0
    seeds = np.repeat([0, 1, 2], 200)
    for _ in range(800):
        chance = 0.7 + spread * rng.normal(size=3).clip(-2, 2)
        scores = (rng.random(600) < chance[seeds]).astype(float)
        hits, alone = (
            count + (found.low <= 0.7 <= found.high)
            for count, found in ((hits, bounded_mean(scores, seeds=seeds)), (alone, bounded_mean(scores)))
        )
    assert hits / 800 > least
    assert (alone / 800 < 0.6) == (spread > 0)


def test_one_seed_and_equal_scores_are_as_without_seeds():
    scores = [0.0, 0.25, 1.0, 1.0]
    assert bounded_mean(scores, seeds=[3] * 4) == bounded_mean(scores)
    assert bounded_mean([1.0] * 9, seeds=[0, 1, 2] * 3) == bounded_mean([1.0] * 9)


def test_the_mean_of_unbounded_values_has_students_interval():
    found = mean_interval([1.0, 2.0, 3.0, 6.0])
    low, high = scipy.stats.t.interval(0.95, 3, loc=3.0, scale=scipy.stats.sem([1.0, 2.0, 3.0, 6.0]))
    assert found == pytest.approx((3.0, low, high))
    assert mean_interval([4.0]) == (4.0, 4.0, 4.0)
    for interval in (bounded_mean, mean_interval):
        with pytest.raises(ValueError, match="non-empty"):
            interval([])
