"""RecurFormer beside the original on lm-eval's tasks. Fractions of right answers decide, of tasks that the original has
learned; perplexities stand beside them: lm-eval gives no interval of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from recurformer.claims.claim import ALLOWED_DROP, Finding
from recurformer.claims.comparisons import RECURFORMER, Comparison, judge_comparisons, recurformer
from recurformer.claims.evidence import Evidence, Missing, Undecided
from recurformer.data.interval import Estimate, bounded_mean
from recurformer.paper import label
from recurformer.results.frames import models_in_order, records
from recurformer.results.learned import FALL
from recurformer.results.scores import NEEDLE, at_common_setting, identified, original
from recurformer.study.measurements import LOCAL

KIND = "ablation_lm_eval"
RIGHT = replace(NEEDLE, kind=KIND, name="fraction of right answers")
UNITS = ("perplexity", "bits_per_byte")
"""How the names of lm-eval's metrics end that are no fractions."""
SAME = ("word_perplexity", "bits_per_byte")
"""Metrics that say what the perplexity per byte says."""


def _pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """RecurFormer's values at the common β beside those of the original, trained likewise: a row a metric of a task."""
    converted = at_common_setting(recurformer(rows))
    unchanged = original(rows, trained=bool(converted["trained"].any()))
    converted, unchanged = (side.assign(row=side.index) for side in (converted, unchanged))
    both = converted.merge(unchanged, on=["model", "task", "metric", "seed"], suffixes=("", "_original"))
    pairs = both.groupby(["model", "task", "metric", "setting"], sort=False, as_index=False).agg(
        value=("value", "mean"), original=("value_original", "mean"), samples=("samples", "min"),
        values=("value", tuple), originals=("value_original", tuple),
        fall=(FALL, _worst), original_fall=(f"{FALL}_original", _worst),
        rows=("row", tuple), original_rows=("row_original", tuple),
    )  # fmt: skip
    return pairs.assign(rows=pairs["rows"] + pairs["original_rows"])


def _worst(falls: pd.Series) -> float:
    return float(falls.max(skipna=False))


def _fraction(values: Sequence[float], samples: int) -> Estimate:
    """The interval of the mean over seeds of so many answers each, right or wrong; of graded ones it is too wide."""
    right = np.rint(np.multiply(values, samples))[:, None] > np.arange(samples)
    seeds = np.repeat(np.arange(len(values)), samples)
    return bounded_mean(right.ravel(), seeds=seeds)._replace(mean=float(np.mean(values)))


def _is_learned(pair: Any, guessed: Mapping[str, float]) -> bool:
    """Whether the original is surely above guessing, by more than a model may lose: else nothing could be lost."""
    chance = next((fraction for name, fraction in guessed.items() if pair.task.startswith(name)), 0.0)
    return _fraction(pair.originals, pair.samples).low > chance + ALLOWED_DROP


def tasks(
    evidence: Evidence, families: Sequence[str] = (), guessed: Mapping[str, float] = MappingProxyType({})
) -> Finding:
    """Each task's fraction of right answers at β = 0.5 beside the original's, less what is allowed.

    Args:
        evidence: with the measurements of lm-eval.
        families: how the names of the tasks that count begin; all of them where none is named.
        guessed: how the names of tasks begin whose answers are chosen -> fraction of right answers by guessing.

    Raises:
        Missing: no task has one that was measured of both, or what was measured says nothing about the question.
        Undecided: the original has learned none of the tasks.
    """
    rows = identified(evidence.rows(KIND), KIND)
    rows = rows[rows["task"].str.startswith(tuple(families) or "")]
    if rows.empty:
        raise Missing("they are on the hub and ask for more tokens than this study's models read (config/paper.yaml)")
    pairs = pd.concat([_pairs(rows[rows["model"] == model]) for model in models_in_order(rows)])
    is_fraction = pairs["value"].between(0, 1) & pairs["original"].between(0, 1) & ~pairs["metric"].str.endswith(UNITS)
    fractions = list(records(pairs[is_fraction]))
    comparisons = [
        Comparison(RIGHT, one.model, f"the original ({one.task}, {one.metric})", one.setting,
            _fraction(one.values, one.samples), _fraction(one.originals, one.samples), one.samples,
            (one.fall, one.original_fall), one.rows)
        for one in fractions
        if _is_learned(one, guessed)
    ]  # fmt: skip
    if not fractions:
        raise Missing("no task of lm-eval with right answers was measured of RecurFormer and of the original")
    if set(pairs["task"]) <= LOCAL:
        raise Missing(
            "tasks of this project only: lm-eval's own, such as HellaSwag and MMLU, are those of config/paper.yaml; "
            f"measured: {_values_text(fractions)}"
        )
    if not comparisons:
        raise Undecided(f"the original does not do surely better than by guessing: {_values_text(fractions)}")
    finding = judge_comparisons(comparisons, allowed=ALLOWED_DROP)
    others = [*records(pairs[~is_fraction & ~pairs["metric"].isin(SAME)])]
    others += [one for one in fractions if not _is_learned(one, guessed)]
    text = "; ".join(filter(None, [finding.ours, _values_text(others)]))
    return replace(finding, ours=text, rows={KIND: sum((one.rows for one in (*comparisons, *others)), ())})


def _values_text(pairs: Sequence[Any]) -> str:
    return "; ".join(
        f"{label(one.model)}, {one.task} {one.metric}: {RECURFORMER} {one.value:.3g}, the original {one.original:.3g}"
        for one in pairs
    )
