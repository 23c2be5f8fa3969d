"""Whether the models before conversion have learned HashHop, which every comparison of converted ones rests on."""

from collections.abc import Mapping

import pandas as pd

from recurformer.render.measurements import require
from recurformer.render.tables.cell_text import NOT_RUN
from recurformer.render.tables.measured import Key, Value, settings_of

NEEDED = 0.95
"""Lowest h_gq before conversion at which h_gq of the converted models is shown. Project rule: a baseline that has not
learned its task says nothing about beta."""


def baseline_scores(baseline: pd.DataFrame, values: Mapping[Key, Value]) -> dict[str, float]:
    """Mean h_gq before conversion of every model that has an h_gq, in the layout that is compared with the paper's.

    Args:
        baseline: model, beta, seed, variant, sample, correct, hops.
        values: what is known of the converted models.

    Raises:
        ValueError: missing columns, no rows, or none of such a model in that layout.
    """
    require(baseline, "baseline")
    score = (baseline["correct"] / baseline["hops"]).groupby([baseline["model"], baseline["variant"]]).mean()
    scores = {}
    for row in dict.fromkeys(row for row, quantity, _ in values if quantity == "h_gq"):
        layout = settings_of(values, row, "h_gq")[0]
        if (row.model, layout) not in score.index:
            raise ValueError(
                f"baseline measurements have no row of {row.model} in the layout {layout}: its h_gq at any beta cannot "
                "be judged without h_gq before conversion"
            )
        scores[row.model] = float(score[row.model, layout])
    return scores


def weak_models(scores: Mapping[str, float]) -> list[str]:
    """The models that score too little before conversion for their h_gq to be shown."""
    return [model for model, score in scores.items() if score < NEEDED]


def without_weak(values: Mapping[Key, Value], scores: Mapping[str, float]) -> dict[Key, Value]:
    """The values, every h_gq of a weak model, whatever its beta and layout, replaced by "not-run"."""
    weak = weak_models(scores)
    not_run = Value(float("nan"), source=NOT_RUN)
    withheld = {key: not_run for key in values if key[0].model in weak and key[1] == "h_gq"}
    return {**values, **withheld}
