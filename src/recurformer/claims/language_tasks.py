"""RecurFormer beside the original on lm-eval's tasks. Shares of right answers decide, of tasks that the original has
learned; perplexities are told besides: lm-eval gives no interval of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from recurformer.claims.claim import ALLOWED_DROP, Finding
from recurformer.claims.comparisons import RECURFORMER, Comparison, judge_comparisons, nearest_beta, recurformer
from recurformer.claims.evidence import Evidence, Missing, Undecided
from recurformer.data.interval import Estimate, bounded_mean
from recurformer.paper import label
from recurformer.results.frames import models_in_order, records
from recurformer.results.learned import FALL
from recurformer.results.scores import NEEDLE, identified, original
from recurformer.study.measurements import LOCAL

KIND = "ablation_lm_eval"
RIGHT = replace(NEEDLE, kind=KIND, name="share of right answers")
UNITS = ("perplexity", "bits_per_byte")
"""How the names of lm-eval's metrics end that are no shares."""
SAME = ("word_perplexity", "bits_per_byte")
"""Metrics that say what the perplexity per byte says."""


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


def _is_learned(pair: Any, guessed: Mapping[str, float]) -> bool:
    """Whether the original is surely above guessing, by more than a model may lose: else nothing could be lost."""
    chance = next((share for name, share in guessed.items() if pair.task.startswith(name)), 0.0)
    return _share(pair.theirs, pair.samples).low > chance + ALLOWED_DROP


def tasks(
    evidence: Evidence, families: Sequence[str] = (), guessed: Mapping[str, float] = MappingProxyType({})
) -> Finding:
    """Each task's share of right answers at β = 0.5 beside the original's, less what is allowed.

    Args:
        evidence: with the measurements of lm-eval.
        families: how the names of the tasks that count begin; all of them where none is named.
        guessed: how the names of tasks begin whose answers are chosen -> share of right answers by guessing.

    Raises:
        Missing: no task has one that was measured of both, or what was measured says nothing about the question.
        Undecided: the original has learned none of the tasks.
    """
    rows = identified(evidence.rows(KIND), KIND)
    rows = rows[rows["task"].str.startswith(tuple(families) or "")]
    if rows.empty:
        raise Missing("they are on the hub and ask for more tokens than this study's models read (config/paper.yaml)")
    pairs = pd.concat([_pairs(rows[rows["model"] == model]) for model in models_in_order(rows)])
    is_share = (pairs["ours"] <= 1) & (pairs["theirs"] <= 1) & ~pairs["metric"].str.endswith(UNITS)
    shares = list(records(pairs[is_share]))
    found = [
        Comparison(RIGHT, one.model, f"the original ({one.task}, {one.metric})", one.setting,
            _share(one.ours, one.samples), _share(one.theirs, one.samples), one.samples,
            (one.our_fall, one.their_fall), one.rows)
        for one in shares
        if _is_learned(one, guessed)
    ]  # fmt: skip
    if not shares:
        raise Missing("no task of lm-eval with right answers was measured of RecurFormer and of the original")
    if set(pairs["task"]) <= LOCAL:
        raise Missing(
            "tasks of this project only: lm-eval's own, such as HellaSwag and MMLU, are those of config/paper.yaml; "
            f"measured: {_told(shares)}"
        )
    if not found:
        raise Undecided(f"the original does not do surely better than by guessing: {_told(shares)}")
    finding = judge_comparisons(found, allowed=ALLOWED_DROP)
    others = [*records(pairs[~is_share & ~pairs["metric"].isin(SAME)])]
    others += [one for one in shares if not _is_learned(one, guessed)]
    text = "; ".join(filter(None, [finding.ours, _told(others)]))
    return replace(finding, ours=text, rows={KIND: sum((one.rows for one in (*found, *others)), ())})


def _told(pairs: Sequence[Any]) -> str:
    return "; ".join(
        f"{label(one.model)}, {one.task} {one.metric}: {RECURFORMER} {one.ours:.3g}, the original {one.theirs:.3g}"
        for one in pairs
    )
