"""Recovery curves: each arm's quality beside its original's while it learns."""

import numpy as np
import pandas as pd

from recurformer.data.interval import mean_interval
from recurformer.paper.sizes import CACHE_LENGTHS
from recurformer.render.measurements import groups, require
from recurformer.study.recovery import EQUAL_BYTES

ARMS = {
    "original": "original, trained on",
    "paper": "paper's recipe",
    "calibrated": "paper's, from the closed form",
    "plus": "plus: closed form, then KL",
    "paper_98k": "paper's recipe, 98k tokens",
    "scratch_98k": "paper's recipe from random weights, 98k tokens",
    "plus_98k": "plus, 98k tokens",
    "bytes_window_half": "window of half the bytes",
    "bytes_window_double": "window of twice the bytes",
}
"""Arm -> its name in print; others by their mixers."""
MIXERS = {
    "mamba": "Mamba state",
    "window": "window",
    "window_state": "window and state",
    "retention": "gated linear attention",
}
QUANTITIES = {"divergence": "KL to the original (nats a token)", "perplexity": "perplexity"}
"""What is drawn of a recovery -> its axis."""
RUN = ["model", "arm", "mixer", "beta", "seed"]
POINT = [*RUN, "tokens"]
LENGTHS = tuple(CACHE_LENGTHS.values())


def at_equal_bytes(rows: pd.DataFrame) -> pd.Series:
    """Which rows are of the arms that are compared at equal bytes."""
    return rows["arm"].str.startswith(EQUAL_BYTES)


def arm_label(arm: str, mixer: str = "") -> str:
    """The printed name of an arm; one of a study's own by its mixer, where that is known."""
    return ARMS.get(arm) or MIXERS.get(mixer) or arm


def points(recovery: pd.DataFrame) -> pd.DataFrame:
    """One row a point of a curve: `POINT`, seconds, perplexity and divergence (nats per token), each with low and high
    of its 95 % interval over the windows, windows; bytes_10240, bytes_61440 (of the cache) and rows (labels in
    `recovery`).

    Raises:
        ValueError: missing columns or no rows.
    """
    found = []
    for key, rows in groups(require(recovery, "recovery"), POINT):
        likelihood, apart = (mean_interval(rows[name].to_numpy()) for name in ("negative_log_likelihood", "divergence"))
        found.append(
            {
                **dict(zip(POINT, key, strict=True)), "seconds": rows["seconds"].iloc[0], "windows": len(rows),
                "perplexity": np.exp(likelihood.mean), "perplexity_low": np.exp(likelihood.low),
                "perplexity_high": np.exp(likelihood.high), "divergence": apart.mean,
                "divergence_low": max(apart.low, 0.0), "divergence_high": apart.high,
                **{f"bytes_{length}": rows[f"bytes_{length}"].iloc[0] for length in LENGTHS},
                "rows": tuple(rows.index),
            }
        )  # fmt: skip
    return pd.DataFrame(found)


def last_points(found: pd.DataFrame) -> pd.DataFrame:
    """The last point of each run."""
    return found[found["tokens"] == found.groupby(RUN, dropna=False)["tokens"].transform("max")]


def untrained(found: pd.DataFrame, model: str) -> pd.Series:
    """The original before any training: the first point of its curve.

    Raises:
        ValueError: the original was not measured.
    """
    rows = found[(found["model"] == model) & (found["arm"] == "original") & (found["tokens"] == 0)]
    if rows.empty:
        raise ValueError(f"recovery measurements have no arm original of {model}, with which the others are compared")
    return rows.iloc[0]


def state_bytes(rows: pd.DataFrame) -> pd.Series:
    """Bytes of a cache that do not grow with the text: by a line through both of the paper's lengths."""
    short, long = LENGTHS
    growth = (rows[f"bytes_{long}"] - rows[f"bytes_{short}"]) / (long - short)
    return rows[f"bytes_{short}"] - growth * short
