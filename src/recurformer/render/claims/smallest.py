"""The smallest cache at which each method still does what the original does."""

from dataclasses import replace
from functools import partial

import pandas as pd

from recurformer.paper import label
from recurformer.render.ablations import (
    HASHHOP,
    METHODS,
    PAPERS_SELECTOR,
    after_training,
    method_label,
    of,
    original,
    scores,
    why_not_run,
)
from recurformer.render.claims.claim import Finding, Missing
from recurformer.render.claims.evidence import Evidence
from recurformer.render.claims.tolerances import ALLOWED_DROP
from recurformer.render.measurements import groups, models_in_order


def smallest_caches(points: pd.DataFrame, allowed: float) -> str:
    """The smallest cache at which a method scores what the original does, less what is allowed, in print.

    Named are RecurFormer and those that need no more.

    Args:
        points: scores of one model.
        allowed: by how much a method may fall short.
    """
    smallest: dict[str, float] = {}
    for family in METHODS:
        for method, rows in groups(after_training(of(points, family)), "method") if family != "original" else ():
            unchanged = original(points, bool(rows["trained"].any()))["mean"].max()
            kept = rows[(rows["mean"] >= unchanged - allowed) & (rows["ratio"] < 1)]
            if len(kept):
                smallest[method_label(family, method)] = float(kept["ratio"].min())
    ours = smallest.get(method_label("mixer", "mamba"), 1.0)
    shown = sorted((ratio, name) for name, ratio in smallest.items() if ratio <= ours)
    said = [f"{ratio:.2f} ({name})" for ratio, name in shown]
    return ", ".join([*said, "all others need more"] if shown else [])


def with_smallest(evidence: Evidence, finding: Finding) -> Finding:
    """The same, with the smallest cache at which RecurFormer, and what needs no more, still does HashHop.

    A model that has not learned HashHop says nothing.
    """
    try:
        points = evidence.derived(HASHHOP.kind, HASHHOP, partial(scores, measure=HASHHOP))
    except Missing:
        return finding
    by_model = {model: points[points["model"] == model] for model in models_in_order(points)}
    learned = {model: found for model, found in by_model.items() if not why_not_run(found, HASHHOP)}
    shown = points[points["by"].isin([PAPERS_SELECTOR, ""]) & points["model"].isin(learned)]
    evidence.count(HASHHOP.kind, *shown["rows"])
    said = [
        f"{label(model)} stays within {ALLOWED_DROP:g} of the original's h_gq down to a cache of {found}"
        for model, of_model in learned.items()
        if (found := smallest_caches(of_model, ALLOWED_DROP))
    ]
    return replace(finding, ours="; ".join([finding.ours, *said]))
