"""The values of all cells of the paper's Tables 1 to 5, which tables show and claims about printed numbers judge."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from recurformer.paper import CACHE_LENGTHS
from recurformer.results.frames import groups, records, require, runs_of
from recurformer.results.learned import LEARNED
from recurformer.results.scores import estimate_quality, papers_method
from recurformer.results.words import NOT_RUN

QUANTITIES = ("l_m", "h_gq", *CACHE_LENGTHS)
SETTINGS = {
    "l_m": ("one_shot", "chunked", "limit"),
    "h_gq": ("official", "paper"),
    **dict.fromkeys(CACHE_LENGTHS, ("kv_group", "head")),
}
"""How each quantity can be measured (protocol of the prefill, or what no prefill can exceed; layout of the task;
selection unit): the first that a model has is compared with the paper, the others stand beside it."""
PYRAMIDINFER = "PyramidInfer"
AT_LEAST = "at least"
"""Source of a length that was measured, but nothing longer was tried."""
CONTRIBUTION = ["model", "norm", "tokens"]


@dataclass(frozen=True)
class Value:
    """One measured value: its interval and number of samples where it is a mean, where it comes from, by which runs."""

    ours: float
    low: float = float("nan")
    high: float = float("nan")
    samples: float = float("nan")
    source: str = "measured"
    runs: str = ""


@dataclass(frozen=True)
class Row:
    """One line of a table: a model under a method; beta is None for a method that replaces no heads."""

    model: str
    method: str
    beta: float | None


Key = tuple[Row, str, str]
"""(line, quantity, setting)"""


def growth_exponent(lengths: np.ndarray, sizes: np.ndarray) -> float:
    """Slope of log(bytes) over log(length), by least squares.

    Raises:
        ValueError: fewer than two lengths, or a length or size that is not positive.
    """
    if len(np.unique(lengths)) < 2:
        raise ValueError(
            f"complexity measurements: a growth exponent needs at least 2 lengths, got {len(np.unique(lengths))}"
        )
    if (lengths <= 0).any() or (sizes <= 0).any():
        raise ValueError("complexity measurements: lengths and bytes must be positive to be fitted on a log-log scale")
    return float(np.polyfit(np.log(lengths), np.log(sizes), 1)[0])


def _points(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Lengths, and the mean bytes at each."""
    points = rows.groupby("length")["bytes"].mean()
    return points.index.to_numpy(dtype=float), points.to_numpy(dtype=float)


def exponent_of(rows: pd.DataFrame) -> float:
    """Growth exponent of the mean bytes at each length.

    Raises:
        ValueError: fewer than two lengths, or one or bytes that are not positive.
    """
    return growth_exponent(*_points(rows))


def exponents(rows: pd.DataFrame) -> dict[str, float]:
    """Fit over all lengths, and between the two longest, where lower-order terms weigh least."""
    if rows.empty:
        return {}
    lengths, sizes = _points(rows)
    return {
        "exponent": growth_exponent(lengths, sizes),
        "exponent_longest": growth_exponent(lengths[-2:], sizes[-2:]),
        "shortest_length": int(lengths[0]),
        "longest_length": int(lengths[-1]),
        "lengths": len(lengths),
        "bytes_at_longest": float(sizes[-1]),
    }


def replacing(model: str, beta: float) -> Row:
    """The line of a model with the share beta of its heads replaced; 0 is the original.

    Beta is rounded: what a file wrote as 0.9 and what a program computed as 0.9 are the same share.
    """
    share = round(float(beta), 6)
    return Row(model, "RecurFormer" if share else "Original Model", share)


def ranked_by_profile(cache: pd.DataFrame) -> pd.DataFrame:
    """Without the rows of randomly ranked heads where the same cell was counted for heads ranked by their profile."""
    if "ranking" not in cache:
        return cache
    by_profile = cache["ranking"] == "profile"
    profiled = by_profile.groupby([cache[column] for column in ("model", "unit", "beta", "length")]).transform("any")
    return cache[by_profile | ~profiled]


def cache_values(cache: pd.DataFrame, source: str = "counted") -> dict[Key, Value]:
    """Caches over those of the original, by unit of the selection.

    Raises:
        ValueError: no length of the paper's, or two caches for one cell.
    """
    lengths = {length: quantity for quantity, length in CACHE_LENGTHS.items()}
    chosen = ranked_by_profile(cache[cache["length"].isin(lengths)])
    if chosen.empty:
        known = " or ".join(map(str, lengths))
        raise ValueError(f"cache measurements have no length {known}: these are cs_10k and cs_60k")
    values: dict[Key, Value] = {}
    for row in records(chosen):
        key = (replacing(row.model, row.beta), lengths[row.length], row.unit)
        if key in values:
            cell = f"model {row.model}, beta {row.beta}, length {row.length}, {row.unit}"
            raise ValueError(f"cache measurements have several rows for {cell}")
        values[key] = Value(float(row.ratio), source=source, runs=getattr(row, "run", ""))
    return values


def pyramidinfer_values(pyramidinfer: pd.DataFrame) -> dict[Key, Value]:
    """Caches of PyramidInfer over those of the original; rows without a source were computed, not counted."""
    require(pyramidinfer, "pyramidinfer")
    return {
        (Row(row.model, PYRAMIDINFER, None), quantity, SETTINGS[quantity][0]): Value(
            float(row.ratio), source=getattr(row, "source", "computed"), runs=getattr(row, "run", "")
        )
        for quantity, length in CACHE_LENGTHS.items()
        for row in records(pyramidinfer[pyramidinfer["length"] == length])
    }


def quality_values(hashhop: pd.DataFrame) -> dict[Key, Value]:
    """h_gq by layout of the task."""
    values: dict[Key, Value] = {}
    for (model, beta, variant), rows in groups(papers_method(hashhop), ["model", "beta", "variant"]):
        mean, low, high = estimate_quality(rows)
        values[replacing(model, beta), "h_gq", variant] = Value(mean, low, high, len(rows), runs=runs_of(rows))
    return values


def longest_values(memory: pd.DataFrame) -> dict[Key, Value]:
    """l_m by protocol of the prefill."""
    values: dict[Key, Value] = {}
    # A measured length replaces a computed one, whatever the order of the rows.
    ordered = memory.sort_values("source", key=lambda source: source == "measured", kind="stable")
    for row in records(ordered):
        line, runs = replacing(row.model, row.beta), getattr(row, "run", "")
        source = AT_LEAST if getattr(row, "at_least", False) is True else row.source
        values[line, "l_m", row.protocol] = Value(float(row.l_m), source=source, runs=runs)
        if (limit := getattr(row, "limit", math.nan)) >= 0:
            values[line, "l_m", "limit"] = Value(float(limit), source="computed", runs=runs)
    return values


def baseline_scores(baseline: pd.DataFrame, values: Mapping[Key, Value]) -> dict[str, float]:
    """Mean h_gq before conversion of every model that has an h_gq, in the layout that is compared with the paper's.

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


def without_weak(values: Mapping[Key, Value], scores: Mapping[str, float]) -> dict[Key, Value]:
    """The values; every h_gq of a model that scores too little before conversion replaced by "not-run"."""
    not_run = Value(math.nan, source=NOT_RUN)
    return {
        key: not_run if key[1] == "h_gq" and scores[key[0].model] < LEARNED else value for key, value in values.items()
    }


def settings_of(values: Mapping[Key, Value], line: Row, quantity: str) -> tuple[str, ...]:
    """The settings under which a quantity was measured for a line's model, the one to compare first; never empty.

    Others than those of `SETTINGS`, such as cards of recordings, are shown beside and never compared.
    """
    known = {
        setting
        for row, what, setting in values
        if row.model == line.model and what == quantity and (row.beta is None) == (line.beta is None)
    }
    if quantity == "l_m":
        known.add("one_shot")  # the paper's own protocol: known or not, no other is compared with its numbers
    ordered = [setting for setting in SETTINGS[quantity] if setting in known] or SETTINGS[quantity][:1]
    return (*ordered, *sorted(known.difference(ordered)))


def perplexity_values(perplexity: pd.DataFrame) -> pd.DataFrame:
    """Perplexity of every model, beta and stage: exp(nats / tokens), each summed, mean over the seeds."""
    keys = ["model", "beta", "stage", "seed"]
    sums = perplexity.groupby(keys, sort=False)[["negative_log_likelihood", "tokens"]].sum().reset_index()
    sums["ours"] = np.exp(sums["negative_log_likelihood"] / sums["tokens"])
    runs = [(*key, runs_of(rows)) for key, rows in groups(perplexity, keys[:-1])]
    found = sums.groupby(keys[:-1], sort=False).agg(
        ours=("ours", "mean"),
        lowest_seed=("ours", "min"),
        highest_seed=("ours", "max"),
        seeds=("seed", "nunique"),
        tokens=("tokens", "max"),
    )
    return found.reset_index().merge(pd.DataFrame(runs, columns=[*keys[:-1], "runs"]))


def contribution_values(contribution: pd.DataFrame) -> pd.DataFrame:
    """One row a model, norm and kind of token: the mean with both of its intervals."""
    intervals = contribution.drop_duplicates(CONTRIBUTION).set_index(CONTRIBUTION)[["mean", "samples", "p_value"]]
    for kind in ("mean", "spread"):
        rows = contribution[contribution["interval"] == kind].set_index(CONTRIBUTION)
        if rows.index.duplicated().any():
            raise ValueError(f"contribution measurements have several rows of interval {kind} for {rows.index[0]}")
        bounds = rows[["low", "high"]].rename(columns={"low": f"{kind}_low", "high": f"{kind}_high"})
        intervals = intervals.join(bounds)
    runs = {model: runs_of(rows) for model, rows in groups(contribution, "model")}
    frame = intervals.rename(columns={"mean": "ours"}).reset_index()
    return frame.assign(runs=frame["model"].map(runs))
