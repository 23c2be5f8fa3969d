"""The rows of trained models that may decide a claim."""

import pandas as pd

from recurformer.paper import label
from recurformer.render.claims.claim import Undecided
from recurformer.render.claims.evidence import Evidence
from recurformer.render.measurements import groups
from recurformer.render.training import TRAINED, largest_fall, why_undecided


def flattened_rows(evidence: Evidence, kind: str, **where: object) -> pd.DataFrame:
    """As `Evidence.rows`, of trainings whose loss has flattened.

    Raises:
        Undecided: the loss of one of them still falls, or its log is not known.
        ValueError: measurements of this kind say nothing about a training.
    """
    if kind not in TRAINED:
        raise ValueError(f"no training stands behind {kind} measurements; behind these: {', '.join(sorted(TRAINED))}")
    rows = evidence.rows(kind, **where)
    named = [key for key in ("model", "beta") if key in rows]
    for key, arm in groups(rows, named):
        if reason := why_undecided(largest_fall(arm)):
            *model, beta = key
            raise Undecided(f"{label(model[0]) if model else kind.upper()} at beta {beta:g}: {reason}")
    return rows
