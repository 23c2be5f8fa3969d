"""95 % confidence intervals of means: of scores in [0, 1], and of values without bounds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A mean and the limits of its confidence interval."""

    mean: float
    low: float
    high: float


def bounded_mean(scores: Sequence[float] | np.ndarray, seeds: Sequence[int] | np.ndarray | None = None) -> Estimate:
    """Mean of scores in [0, 1] with a score interval: Wilson's, extended from exact/not exact to graded scores.

    Wilson's interval holds every m with (mean - m)² ≤ t² v(m)/n, where v(m) = m(1 - m) is the variance of a coin of
    mean m. Graded scores vary less, so v(m) = d·m(1 - m) with d = their variance over that of the coin of the same
    mean. The limits stay in [0, 1] without clipping, and t (n - 1 degrees of freedom) allows for the estimated d. Where
    all scores are equal nothing can be learned about d, and d = 1 is the largest possible: 256 scores of 1.0 give
    [0.985, 1], not the empty interval of the t or bootstrap method.

    With several seeds both vary: where the seeds' means differ by more than their samples explain, the variance is
    theirs, and so are the degrees of freedom (a one-way analysis of variance, pooled where it finds no effect).

    Args:
        scores: (n,).
        seeds: (n,), of the training behind each score; equally many scores a seed.

    Raises:
        ValueError: no scores, or scores outside [0, 1].
    """
    from scipy.stats import t  # slow to import, and most importers of this module compute no interval

    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values) or values.min() < 0 or values.max() > 1:
        raise ValueError("bounded_mean: give a flat, non-empty list of scores between 0 and 1")
    n, mean = len(values), float(values.mean())
    freedom, variance = n - 1, mean * (1 - mean)
    if n > 1 and np.ptp(values) > 0:
        variance = float(values.var(ddof=1))
        _, group = np.unique(np.zeros(n) if seeds is None else seeds, return_inverse=True)
        sizes = np.bincount(group)
        means = np.bincount(group, values) / sizes
        if len(sizes) > 1 and (between := float(sizes @ (means - mean) ** 2) / (len(sizes) - 1)) > variance:
            freedom, variance = len(sizes) - 1, between
    dispersion = variance / (mean * (1 - mean)) if 0 < mean < 1 else 1.0
    quantile = float(t.ppf(0.5 + CONFIDENCE / 2, max(freedom, 1)))
    spread = dispersion * quantile**2 / n
    centre = (mean + spread / 2) / (1 + spread)
    half = np.sqrt(spread * mean * (1 - mean) + spread**2 / 4) / (1 + spread)
    return Estimate(mean, float(min(max(centre - half, 0.0), mean)), float(max(min(centre + half, 1.0), mean)))


def mean_interval(values: Sequence[float] | np.ndarray) -> Estimate:
    """Mean of values without bounds, with Student's 95 % interval; of a single value all three are that value.

    Raises:
        ValueError: no values.
    """
    from scipy.stats import t

    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError("mean_interval: give a flat, non-empty list of values")
    mean, n = float(array.mean()), len(array)
    half = float(t.ppf(0.5 + CONFIDENCE / 2, n - 1) * array.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    return Estimate(mean, mean - half, mean + half)
