"""RecurFormer beside the original on lm-eval's tasks. Shares of right answers decide; perplexities are told besides:
lm-eval gives no interval of them.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from recurformer.claims.claim import ALLOWED_DROP, Finding, Missing
from recurformer.claims.comparisons import judge_comparisons
from recurformer.claims.evidence import Evidence
from recurformer.claims.pairings import RECURFORMER, Comparison, nearest_beta, recurformer
from recurformer.paper import label
from recurformer.render.ablations import NEEDLE, identified, original
from recurformer.render.measurements import models_in_order, records
from recurformer.render.training import FALL
from recurformer.tasks.interval import Estimate, bounded_mean

KIND = "ablation_lm_eval"
RIGHT = replace(NEEDLE, kind=KIND, name="share of right answers")
UNITS = ("perplexity", "bits_per_byte")
"""How the names of lm-eval's metrics end that are no shares."""
SAME = ("word_perplexity", "bits_per_byte")
"""Metrics that say what the perplexity per byte says."""
LOCAL = frozenset({"hashhop", "passkey", "wikipedia"})
"""This project's own tasks: alone they do not answer a question about lm-eval's."""


def _pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """RecurFormer's values at the common β beside those of the original, trained likewise: a row a metric of a task."""
    ours = recurformer(rows)
    ours = ours[ours["setting"].isin(nearest_beta(ours)["setting"])]
    theirs = original(rows, trained=bool(ours["trained"].any()))
    ours, theirs = (side.assign(row=side.index) for side in (ours, theirs))
    both = ours.merge(theirs, on=["model", "task", "metric", "seed"], suffixes=("", "_original"))
    pairs = both.groupby(["model", "task", "metric", "setting"], sort=False, as_index=False).agg(
        ours=("value", "mean"), theirs=("value_original", "mean"), samples=("samples", "min"),
        our_fall=(FALL, _worst), their_fall=(f"{FALL}_original", _worst),
        our_rows=("row", tuple), their_rows=("row_original", tuple),
    )  # fmt: skip
    return pairs.assign(rows=pairs.pop("our_rows") + pairs.pop("their_rows"))


def _worst(falls: pd.Series) -> float:
    return float(falls.max(skipna=False))


def _share(mean: float, samples: int) -> Estimate:
    """The interval of a mean of so many answers, each right or wrong; of graded ones it is too wide."""
    right = round(mean * samples)
    return bounded_mean(np.repeat([1.0, 0.0], [right, samples - right]))._replace(mean=mean)


def tasks(evidence: Evidence, families: Sequence[str] = ()) -> Finding:
    """Each task's share of right answers at β = 0.5 beside the original's, less what is allowed.

    Args:
        evidence: with the measurements of lm-eval.
        families: how the names of the tasks that count begin; all of them where none is named.

    Raises:
        Missing: no task has one that was measured of both, or what was measured says nothing about the question.
    """
    rows = identified(evidence.look(KIND), KIND)
    rows = rows[rows["task"].str.startswith(tuple(families) or "")]
    if rows.empty:
        raise Missing("they are on the hub and ask for more tokens than this study's models read (config/paper.yaml)")
    pairs = pd.concat([_pairs(rows[rows["model"] == model]) for model in models_in_order(rows)])
    pairs = pairs[(pairs["ours"] >= 0) & (pairs["theirs"] >= 0)]  # RULER says -1 for lengths that were not asked
    is_share = (pairs["ours"] <= 1) & (pairs["theirs"] <= 1) & ~pairs["metric"].str.endswith(UNITS)
    found = [
        Comparison(RIGHT, one.model, f"the original ({one.task}, {one.metric})", one.setting,
            _share(one.ours, one.samples), _share(one.theirs, one.samples), one.samples,
            (one.our_fall, one.their_fall), one.rows)
        for one in records(pairs[is_share])
    ]  # fmt: skip
    if not found:
        raise Missing("no task of lm-eval with right answers was measured of RecurFormer and of the original")
    if set(pairs["task"]) <= LOCAL:
        raise Missing(
            "tasks with local data only: the hub's, such as HellaSwag and MMLU, are those of config/paper.yaml; "
            f"measured: {judge_comparisons(found, allowed=ALLOWED_DROP).ours}"
        )
    finding = judge_comparisons(found, allowed=ALLOWED_DROP)
    others = pairs[~is_share & ~pairs["metric"].isin(SAME)]
    evidence.count(KIND, *(one.rows for one in found), *others["rows"])
    told = [
        f"{label(one.model)}, {one.task} {one.metric}: {RECURFORMER} {one.ours:.3g}, the original {one.theirs:.3g}"
        for one in records(others)
    ]
    return replace(finding, ours="; ".join([finding.ours, *told]))
