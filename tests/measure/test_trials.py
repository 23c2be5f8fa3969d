"""The search for the longest length that fits."""

import pytest

from recurformer.measure.longest import Trial, longest_within, search


def counted_search(limit, guess, maximum=10**6, tolerance=0.01):
    tried = []

    def fits(length):
        tried.append(length)
        return length <= limit

    return search(fits, guess, maximum, tolerance), tried


@pytest.mark.parametrize("limit", [0, 1, 2, 99, 1_000, 71_680, 10**6])
@pytest.mark.parametrize("guess", [0, 1, 1_000, 70_000, 10**7])
def test_the_longest_that_fits_within_the_tolerance(limit, guess):
    found, tried = counted_search(limit, guess)
    assert found <= limit <= max(found * 1.01, found)
    assert all(1 <= length <= 10**6 for length in tried) and len(tried) == len(set(tried))
    assert found == 0 or found in tried


def test_a_good_guess_takes_few_trials():
    for limit in (99_000, 100_000, 101_000):
        assert len(counted_search(limit, 100_000)[1]) <= 4


@pytest.mark.parametrize("guess", [1, 400, 498, 10**6])
def test_nothing_beyond_the_maximum_is_tried(guess):
    found, tried = counted_search(10**9, guess, maximum=500)
    assert found == max(tried) == 500


@pytest.mark.parametrize(
    ("minutes", "maximum", "longest"),
    [(4, 10**6, 200_000), (1, 10**6, 100_000), (1, 60_000, 60_000), (1e-9, 10**6, 25_000)],
)
def test_the_longest_within_some_minutes_is_told_from_a_short_trial(minutes, maximum, longest):
    """Quadratic: 100,000 tokens take a minute. The short trial itself is always tried."""
    lengths = []

    def trial(length):
        lengths.append(length)
        return Trial(length, True, 60 * (length / 100_000) ** 2)

    assert longest_within(minutes, trial, 100_000, maximum) == pytest.approx(longest, rel=0.01)
    assert lengths == [min(maximum, 100_000) // 4]


def test_no_trial_is_allowed_that_takes_longer():
    """Where a part of the time grows with the length alone, the square law finds too short a length, never too long."""

    def trial(length):
        return Trial(length, True, 30 * length / 100_000 + 30 * (length / 100_000) ** 2)

    found = longest_within(1, trial, 100_000, 10**6)
    assert 0.6 * 100_000 < found <= 100_000 and trial(found).seconds <= 60


def test_time_limits_nothing_where_not_even_the_short_trial_fits():
    assert longest_within(1, lambda length: Trial(length, False, 99.0), 100_000, 10**6) == 10**6
