"""What trainings have learned: whether a task is learned at all, whether a loss has flattened, MQAR, recovery.

A model that has not learned a task says nothing about what was made of it, and a loss that still falls decides nothing.
"""

import math

import numpy as np
import pandas as pd

from recurformer.data.interval import mean_interval
from recurformer.paper import CACHE_LENGTHS, CELLS, label
from recurformer.results.frames import groups, ratio_of_sums, require, require_values
from recurformer.study.method import EQUAL_BYTES

LEARNED = 0.95
"""Lowest fraction of right answers (hops, needles) of an original at which what was made of it is compared with it."""
NEAR_PRINTED = 0.05
"""By how much a measured h_gq may differ from a printed one, which was measured on other samples."""
PRINTED = {cell.model: cell.value for cell in CELLS if cell.table == 2 and cell.quantity == "h_gq" and cell.beta == 0}
"""h_gq of the paper's originals: 0.881, 0.894 and 0.995. `LEARNED` alone would refuse two of them."""
LEARNED_MQAR = 0.99
"""Lowest mean accuracy at beta = 0, on every trained length, at which any beta is shown. The paper prints no accuracy,
so this refuses none of its numbers: attention learns these lookups to the end, and where it has not, no β was trained
long enough."""
KNOWS_LANGUAGE = 100.0
"""An original of a higher perplexity has not learned the language of the articles."""

ALLOWED_FALL = 0.05
"""Nats by which the mean loss may have fallen from the third to the last quarter of the steps, at the upper end of the
95 % interval of that fall: 5 % of a perplexity, which Table 3's cells tolerate too. A training computes that end
(`train.trainer.fall_of`); where it measures its held-out loss, from that loss at three quarters of the steps and at
their end (`recover.run.RecoveryCurve.fall`), because the loss on a text that is read again falls for ever. A curve of
few or scattered points may have flattened, but does not show it."""
FALL = "fall"
"""Column of that end, in every row that a trained model gave."""


def needed_h_gq(model: str) -> float:
    """Lowest h_gq of an original at which what was made of it is compared with it: `LEARNED`, or what the paper prints
    of it, less `NEAR_PRINTED`, where that is lower.
    """
    return min(LEARNED, PRINTED.get(model, math.inf) - NEAR_PRINTED)


def why_h_gq_undecided(model: str, reached: float) -> str:
    """Why h_gq of a converted model decides nothing where its original has reached so much; empty where it does.

    A printed cell stands beside a measured one of the same original: so the original must be near the printed one. Any
    other must have learned the task.
    """
    if model not in PRINTED:
        needs = f"a comparison needs {LEARNED:g}" if reached < LEARNED else ""
    else:
        away = round(abs(reached - PRINTED[model]), 9)
        needs = f"a comparison needs the printed {PRINTED[model]:g} ± {NEAR_PRINTED:g}" if away > NEAR_PRINTED else ""
    return needs and f"the original {label(model)} reaches h_gq {reached:.3f}; {needs}"


def largest_fall(rows: pd.DataFrame) -> float:
    """The largest fall of the trainings behind some rows; NaN where one is not known."""
    return float(rows[FALL].max(skipna=False)) if FALL in rows else math.nan


def why_undecided(fall: float) -> str:
    """Why a training with this fall decides nothing; empty when its loss has flattened."""
    if fall <= ALLOWED_FALL:
        return ""
    if math.isnan(fall):
        return "whether the loss of its training has flattened is not known: no metric log of at least 8 lines"
    return (
        f"the loss of its training may have fallen by {fall:.2f} nats near its end, in the last quarter of the steps; "
        f"{ALLOWED_FALL:g} are allowed"
    )


TRIAL = ["beta", "learning_rate", "seed"]


def best_learning_rates(mqar: pd.DataFrame) -> dict[float, float]:
    """For each beta the learning rate with the highest mean accuracy on the validation samples, over all seeds.

    These are of the trained lengths, each of which counts alike, and none is in the test split: what a panel shows was
    not selected on it. The smaller rate wins a tie.

    Raises:
        ValueError: no row is of the validation split.
    """
    require_values(mqar, "mqar", "split", ["validation"])
    validation = mqar[mqar["split"] == "validation"]
    by_run = ratio_of_sums(validation, [*TRIAL, "length"], "correct", "queries")
    score = by_run.groupby(["beta", "learning_rate"]).mean()
    return {float(beta): float(score[beta].sort_index().idxmax()) for beta in score.index.unique("beta")}


def at_best_rate(rows: pd.DataFrame, best: dict[float, float]) -> pd.DataFrame:
    """The rows at the chosen learning rate of each beta."""
    return rows[rows["learning_rate"] == rows["beta"].map(best)]


def why_mqar_not_run(mqar: pd.DataFrame, best: dict[float, float]) -> str:
    """Why no beta can be shown, one sentence; empty when the original has learned every trained length.

    Judged on the validation samples, which are of just the slices that were trained: a tested slice may ask for more
    pairs at a trained length.
    """
    original = at_best_rate(mqar[(mqar["beta"] == 0) & (mqar["split"] == "validation")], best)
    if original.empty:
        return (
            "Not compared: the accuracy at β = 0 on trained lengths is not known; a comparison needs "
            f"{LEARNED_MQAR:g} on each."
        )
    accuracy = ratio_of_sums(original, ["length", "seed"], "correct", "queries").groupby("length").mean()
    if accuracy.min() >= LEARNED_MQAR:
        return ""
    return (
        f"Not compared: with no head replaced (β = 0) the lowest accuracy on a trained length is {accuracy.min():.3f} "
        f"({accuracy.idxmin():,} tokens), a comparison needs {LEARNED_MQAR:g} on each."
    )


ARMS = {
    "original": "original, trained on",
    "paper": "plain training",
    "calibrated": "plain training, from the closed form",
    "plus": "plus: closed form, then KL",
    "paper_98k": "plain training, 98k tokens",
    "scratch_98k": "plain training from random weights, 98k tokens",
    "plus_98k": "plus, 98k tokens",
    "bytes_mamba_states": "Mamba state, half the channels",
    "bytes_gated": "gated recurrence",
    "bytes_gated_fast": "gated recurrence, ten times the rate",
    "bytes_window_half": "window of half the bytes",
    "bytes_window_double": "window of twice the bytes",
}
"""Arm -> its name in print; others by their mixers. Plain training is our reading of the paper, which names neither
the rates nor the number of steps."""
RECOVERED_BY = {
    "mamba": "Mamba state",
    "window": "window",
    "window_state": "window and state",
    "retention": "gated linear attention",
    "gated": "gated recurrence",
}
CURVE = ["model", "arm", "mixer", "beta", "seed"]
POINT = [*CURVE, "tokens"]
LENGTHS = tuple(CACHE_LENGTHS.values())


def at_equal_bytes(rows: pd.DataFrame) -> pd.Series:
    """Which rows are of the arms that are compared at equal bytes."""
    return rows["arm"].str.startswith(EQUAL_BYTES)


def arm_label(arm: str, mixer: str = "") -> str:
    """The printed name of an arm; one of a study's own by its mixer, where that is known."""
    return ARMS.get(arm) or RECOVERED_BY.get(mixer) or arm


def recovery_points(recovery: pd.DataFrame) -> pd.DataFrame:
    """One row a point of a curve: `POINT`, seconds, perplexity and divergence (nats per token), each with low and high
    of its 95 % interval over the windows, windows; bytes_10240, bytes_61440 (of the cache) and rows (labels in
    `recovery`).

    Raises:
        ValueError: missing columns or no rows.
    """
    points = []
    for key, rows in groups(require(recovery, "recovery"), POINT):
        likelihood, apart = (mean_interval(rows[name].to_numpy()) for name in ("negative_log_likelihood", "divergence"))
        points.append(
            {
                **dict(zip(POINT, key, strict=True)), "seconds": rows["seconds"].iloc[0], "windows": len(rows),
                "perplexity": np.exp(likelihood.mean), "perplexity_low": np.exp(likelihood.low),
                "perplexity_high": np.exp(likelihood.high), "divergence": apart.mean,
                "divergence_low": max(apart.low, 0.0), "divergence_high": apart.high,
                **{f"bytes_{length}": rows[f"bytes_{length}"].iloc[0] for length in LENGTHS},
                "rows": tuple(rows.index),
            }
        )  # fmt: skip
    return pd.DataFrame(points)


def last_points(points: pd.DataFrame) -> pd.DataFrame:
    """The last point of each run."""
    return points[points["tokens"] == points.groupby(CURVE, dropna=False)["tokens"].transform("max")]


def untrained(points: pd.DataFrame, model: str) -> pd.Series:
    """The original before any training: the first point of its curve.

    Raises:
        ValueError: the original was not measured.
    """
    rows = points[(points["model"] == model) & (points["arm"] == "original") & (points["tokens"] == 0)]
    if rows.empty:
        raise ValueError(f"recovery measurements have no arm original of {model}, with which the others are compared")
    return rows.iloc[0]


def state_bytes(rows: pd.DataFrame) -> pd.Series:
    """Bytes of a cache that do not grow with the text: by a line through both of the paper's lengths."""
    short, long = LENGTHS
    growth = (rows[f"bytes_{long}"] - rows[f"bytes_{short}"]) / (long - short)
    return rows[f"bytes_{short}"] - growth * short
