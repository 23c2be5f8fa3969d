"""The rows of trained models that may decide a claim."""

from collections.abc import Iterable

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


def still_learning(evidence: Evidence, kind: str, **where: object) -> Undecided | None:
    """Why some trainings may not have learned all that they could; None where their losses have flattened."""
    try:
        flattened_rows(evidence, kind, **where)
    except Undecided as undecided:
        return undecided
    return None


def require_flattened(arms: Iterable[tuple[bool, Undecided | None]]) -> None:
    """Let no arm that may still learn decide; one that fails at its end decides whatever the others learn.

    Args:
        arms: of each, whether it fails the test, and why it may still learn.

    Raises:
        Undecided: an arm may still learn, and none fails at its end.
    """
    known = list(arms)
    if any(fails and not learning for fails, learning in known):
        return
    for _, learning in known:
        if learning:
            raise learning
