"""Scores and comparisons behind the reviewers' figures, by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from recurformer.render.figures_cache import front
from recurformer.results.scores import CONTINUATION, agreement, scores


def test_the_front_is_what_no_other_point_dominates():
    points = pd.DataFrame({"ratio": [0.6, 0.2, 0.2, 0.4, 1.0], "mean": [0.5, 0.1, 0.3, 0.2, 0.5]})
    assert front(points).to_dict("list") == {"ratio": [0.2, 0.6], "mean": [0.3, 0.5]}


def test_agreement_of_a_small_table_by_hand():
    scores = {"ra_i": (4, 3, 2, 1), "echo": (4, 1, 3, 2)}
    rows = [("m", by, 0, 0, head, score) for by, values in scores.items() for head, score in enumerate(values)]
    found = agreement(pd.DataFrame(rows, columns=["model", "by", "seed", "layer", "head", "score"]))
    echo = found[found["by"] == "echo"].iloc[0]
    assert echo["overlap"] == 0.5
    assert echo["rank_correlation"] == pytest.approx(0.4)  # 1 - 6·(0 + 4 + 1 + 1)/(4·15)


def test_the_interval_of_a_perplexity_is_that_of_the_change():
    """Windows differ by two nats; one method loses 0.1 nats in each of them, another one 0.1 on average."""
    about = {"model": "tiny", "by": "", "trained": False, "seed": 0, "ratio": 1.0, "position": 0, "tokens": 10}
    losses = {"full": [3.0, 5.0], "even": [3.1, 5.1], "uneven": [3.0, 5.2]}
    rows = pd.DataFrame(
        {**about, "family": "mixer" if method != "full" else "original", "method": method, "setting": 1.0,
         "window": window, "negative_log_likelihood": 10 * loss}
        for method, found in losses.items()
        for window, loss in enumerate(found)
    )  # fmt: skip
    found = scores(rows, CONTINUATION).set_index("method")
    np.testing.assert_allclose(found.loc["full", ["mean", "low", "high"]].astype(float), -4.0)
    np.testing.assert_allclose(found.loc["even", ["mean", "low", "high"]].astype(float), -4.1)
    half = t.ppf(0.975, 1) * np.std([0.0, 0.2], ddof=1) / np.sqrt(2)
    np.testing.assert_allclose(found.loc["uneven", ["mean", "high"]].astype(float), [-4.1, -4.1 + half])
