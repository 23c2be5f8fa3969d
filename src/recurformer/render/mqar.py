"""Which MQAR runs are compared: the learning rate of each share of replaced heads, and whether the task was learned."""

import pandas as pd

from recurformer.render.measurements import require_values

RUN = ["beta", "learning_rate", "seed"]
NEEDED = 0.99
"""Lowest mean accuracy at beta = 0, on every trained length, at which any beta is shown. Project rule: a baseline that
has not learned its task says nothing about beta."""


def accuracy_of(mqar: pd.DataFrame, keys: list[str]) -> pd.Series:
    """Correct answers over queries of each group."""
    sums = mqar.groupby(keys)[["correct", "queries"]].sum()
    return sums["correct"] / sums["queries"]


def best_learning_rates(mqar: pd.DataFrame) -> dict[float, float]:
    """For each beta the learning rate with the highest mean accuracy on the validation samples, over all seeds.

    These are of the trained lengths, each of which counts alike, and none is in the test split: what a panel shows was
    not selected on it. The smaller rate wins a tie.

    Raises:
        ValueError: no row is of the validation split.
    """
    require_values(mqar, "mqar", "split", ["validation"])
    validation = mqar[mqar["split"] == "validation"]
    score = accuracy_of(validation, [*RUN, "length"]).groupby(["beta", "learning_rate"]).mean()
    return {float(beta): float(score[beta].sort_index().idxmax()) for beta in score.index.unique("beta")}


def at_best_rate(rows: pd.DataFrame, best: dict[float, float]) -> pd.DataFrame:
    """The rows at the chosen learning rate of each beta."""
    return rows[rows["learning_rate"] == rows["beta"].map(best)]


def why_not_run(mqar: pd.DataFrame, best: dict[float, float]) -> str:
    """Why no beta can be shown, one sentence; empty when the original has learned every trained length.

    Judged on the validation samples, which are of just the slices that were trained: a tested slice may ask for more
    pairs at a trained length.
    """
    original = at_best_rate(mqar[(mqar["beta"] == 0) & (mqar["split"] == "validation")], best)
    if original.empty:
        return f"Not-run: the accuracy at β = 0 on trained lengths is not known; a comparison needs {NEEDED:g} on each."
    accuracy = accuracy_of(original, ["length", "seed"]).groupby("length").mean()
    if accuracy.min() >= NEEDED:
        return ""
    return (
        f"Not-run: with no head replaced (β = 0) the lowest accuracy on a trained length is {accuracy.min():.3f} "
        f"({accuracy.idxmin():,} tokens), a comparison needs {NEEDED:g} on each."
    )
