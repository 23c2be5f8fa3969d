"""The power rule about trainings: a loss that still falls decides nothing.

A training has flattened when its mean loss fell by at most `ALLOWED_FALL` from the third to the last quarter of its
steps, at the upper end of the 95 % interval of that fall. The interval makes the rule fair to noise: a curve of few or
scattered points may have flattened, but does not show it. Every row that a trained model gave carries that end as its
`fall`, from the metric log of the run that trained it.
"""

import math
from pathlib import Path

import numpy as np
import pandas as pd

from recurformer.records import places_of_inputs, read_record, record_of
from recurformer.render.measurements import read_frame

ALLOWED_FALL = 0.05
"""Nats: 5 % of a perplexity, which is also what Table 3's cells tolerate."""
CONFIDENCE = 0.95
FALL = "fall"
LOG = "metrics.jsonl"
"""What a training calls its metric log."""
TRAINED = frozenset({
    "metrics", "perplexity", "hashhop", "mqar", "ablation_hashhop", "hashhop_sizes", "needle", "continuation",
    "ablation_lm_eval",
})  # fmt: skip
"""The kinds of measurements that trained models give."""


def fall_of(losses: np.ndarray) -> float:
    """The most by which a loss may have fallen from the third to the last quarter of its log, in nats (Welch's t).

    Args:
        losses: in the order of the steps.

    Returns:
        NaN for fewer than eight values, of which no quarter has a spread.
    """
    from scipy.stats import ttest_ind  # slow to import, as in recurformer.tasks.interval

    if len(losses) < 8:
        return math.nan
    third, last = np.array_split(np.asarray(losses, dtype=float), 4)[2:]
    if not third.std() + last.std():
        return float(third.mean() - last.mean())
    return float(ttest_ind(third, last, equal_var=False).confidence_interval(CONFIDENCE).high)


def _log_behind(file: Path) -> Path | None:
    """The metric log of the training nearest before a file, as run records tell.

    Inputs are looked up by their places, whichever run has written them: a recording may join runs of one recipe.
    """
    waiting = [file.resolve()]
    for place in waiting:
        if (record := record_of(place)) is None:
            continue
        run, log = read_record(record), record.with_name(LOG)
        if LOG in run["outputs"] and log.is_file():
            return log
        for places in places_of_inputs(record, run):
            waiting += [place for place in places if place.parent.is_dir() and place not in waiting]
    return None


def with_fall(rows: pd.DataFrame, file: Path) -> pd.DataFrame:
    """The rows of a file with their `fall`: NaN where no log is known, 0 where the row says that it was not trained."""
    if file.stem not in TRAINED:
        return rows
    log = file if file.name == LOG else _log_behind(file)
    curve = pd.DataFrame() if log is None else read_frame(log)
    fall = fall_of(curve.sort_values("step")["loss"].to_numpy()) if {"step", "loss"} <= set(curve) else math.nan
    trained = rows["trained"].astype(bool) if "trained" in rows else True
    return rows.assign(**{FALL: np.where(trained, fall, 0.0)})


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
        f"the loss of its training may have fallen by {fall:.2f} nats from the third to the last quarter; "
        f"{ALLOWED_FALL:g} are allowed"
    )
