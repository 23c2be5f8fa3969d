"""The power rule about trainings: a loss that still falls decides nothing.

A training has flattened when its mean loss fell by at most `ALLOWED_FALL` from the third to the last quarter of its
steps, at the upper end of the 95 % interval of that fall. The interval makes the rule fair to noise: a curve of few or
scattered points may have flattened, but does not show it. A training computes that end (`train.trainer.fall_of`), and
every row that a trained model gave carries it as its `fall`.
"""

import math

import pandas as pd

ALLOWED_FALL = 0.05
"""Nats: 5 % of a perplexity, which is also what Table 3's cells tolerate."""
FALL = "fall"
TRAINED = frozenset({
    "metrics", "perplexity", "hashhop", "mqar", "ablation_hashhop", "hashhop_sizes", "needle", "continuation",
    "ablation_lm_eval",
})  # fmt: skip
"""The kinds of measurements that trained models give."""


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
