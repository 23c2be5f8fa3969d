"""A mean score with its 95 % interval: over training seeds where there are several, else over samples."""

import pandas as pd

from recurformer.tasks.interval import Estimate, bounded_mean


def estimate_quality(rows: pd.DataFrame) -> Estimate:
    """Mean of correct / hops, a score in [0, 1].

    Args:
        rows: seed, correct, hops; one row a sample.
    """
    scores = rows["correct"] / rows["hops"]
    by_seed = scores.groupby(rows["seed"]).mean()
    return bounded_mean((by_seed if len(by_seed) > 1 else scores).to_numpy())
