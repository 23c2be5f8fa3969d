"""The values of all cells of the paper's Tables 1 to 5, which tables show and claims about printed numbers judge."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from recurformer.paper import CACHE_LENGTHS
from recurformer.results.frames import groups, in_order, require, runs_of
from recurformer.results.learned import why_h_gq_undecided
from recurformer.results.scores import UNITS, estimate_quality, papers_method
from recurformer.results.words import UNDECIDED

LAYOUTS = {"official": "official layout", "paper": "appendix layout"}
"""Layout of HashHop -> its name in print. The first is judged: the second has a shortcut. Only hashes of its one chain
occur twice, so counting tells the chain from the lone pairs without looking anything up.
"""
SETTINGS = {
    "l_m": ("one_shot", "chunked", "limit", "all_logits"),
    "h_gq": tuple(LAYOUTS),
    **dict.fromkeys(CACHE_LENGTHS, tuple(UNITS)),
}
"""How each quantity can be measured (protocol of the prefill, or what no prefill can exceed; layout of the task;
selection unit): the first that a model has is compared with the paper, the others stand beside it."""
PYRAMIDINFER = "PyramidInfer"
AT_LEAST = "at least"
"""Status of a length that was measured, but nothing longer was tried."""
CONTRIBUTION = ["model", "norm", "tokens"]


LINE = ["model", "method", "beta"]
"""Of a table: a model under a method; beta is NaN for a method that replaces no heads."""
CELL = [*LINE, "quantity", "setting"]
CELLS = [*CELL, "ours", "low", "high", "samples", "status", "runs"]
"""A measured cell: its value, interval and number of samples where it is a mean, where it comes from, by which runs."""


def growth_exponent(lengths: np.ndarray, sizes: np.ndarray) -> float:
    """Slope of log(bytes) over log(length), by least squares.

    Raises:
        ValueError: fewer than two lengths.
    """
    if len(np.unique(lengths)) < 2:
        raise ValueError("complexity measurements: a growth exponent needs at least 2 lengths")
    return float(np.polyfit(np.log(lengths), np.log(sizes), 1)[0])


def exponents(rows: pd.DataFrame) -> dict[str, float]:
    """Fit to the mean bytes at all lengths, and at the two longest, where lower-order terms weigh least.

    Raises:
        ValueError: fewer than two lengths.
    """
    points = rows.groupby("length")["bytes"].mean()
    lengths, sizes = points.index.to_numpy(dtype=float), points.to_numpy(dtype=float)
    return {
        "exponent": growth_exponent(lengths, sizes),
        "exponent_longest": growth_exponent(lengths[-2:], sizes[-2:]),
        "shortest_length": int(lengths[0]),
        "longest_length": int(lengths[-1]),
        "lengths": len(lengths),
        "bytes_at_longest": float(sizes[-1]),
    }


def _cells(rows: pd.DataFrame, **columns: object) -> pd.DataFrame:
    """The cells that some rows give, of several values for one cell the last.

    Beta is rounded: what a file wrote as 0.9 and what a program computed as 0.9 are the same fraction; 0 is the
    original, and none PyramidInfer.
    """
    beta = rows.get("beta", pd.Series(math.nan, rows.index)).astype(float).round(6)
    method = np.select([beta > 0, beta == 0], ["RecurFormer", "Original Model"], PYRAMIDINFER)
    line = {"model": rows["model"], "method": method, "beta": beta}
    cells = pd.DataFrame({**line, "runs": rows.get("run", ""), **columns}).reindex(columns=CELLS)
    return cells.drop_duplicates(CELL, keep="last")


def ranked_by_profile(cache: pd.DataFrame) -> pd.DataFrame:
    """Without the rows of randomly ranked heads where the same cell was counted for heads ranked by their profile."""
    if "ranking" not in cache:
        return cache
    by_profile = cache["ranking"] == "profile"
    profiled = by_profile.groupby([cache[column] for column in ("model", "unit", "beta", "length")]).transform("any")
    return cache[by_profile | ~profiled]


def cache_values(cache: pd.DataFrame, status: str = "counted") -> pd.DataFrame:
    """Caches over those of the original, by unit of the selection.

    Raises:
        ValueError: no length of the paper's, or two caches for one cell.
    """
    lengths = {length: quantity for quantity, length in CACHE_LENGTHS.items()}
    rows = ranked_by_profile(cache[cache["length"].isin(lengths)]).round({"beta": 6})
    if rows.empty:
        known = " or ".join(map(str, lengths))
        raise ValueError(f"cache measurements have no length {known}: these are cs_10k and cs_60k")
    doubled = rows[rows.duplicated(["model", "beta", "length", "unit"])]
    if len(doubled):
        row = doubled.iloc[0]
        cell = f"model {row['model']}, beta {row['beta']}, length {row['length']}, {row['unit']}"
        raise ValueError(f"cache measurements have several rows for {cell}")
    return _cells(
        rows,
        quantity=rows["length"].map(lengths),
        setting=rows["unit"],
        ours=rows["ratio"].astype(float),
        status=status,
    )


def pyramidinfer_values(pyramidinfer: pd.DataFrame) -> pd.DataFrame:
    """Caches of PyramidInfer over those of the original."""
    rows = require(pyramidinfer, "pyramidinfer")
    return cache_values(rows.assign(unit=SETTINGS["cs_10k"][0], beta=math.nan))


def quality_values(hashhop: pd.DataFrame) -> pd.DataFrame:
    """h_gq of the paper's method and of the original trained likewise, by layout of the task."""
    return _quality_values(papers_method(hashhop))


def pyramidinfer_quality(hashhop: pd.DataFrame) -> pd.DataFrame:
    """h_gq of PyramidInfer, likewise."""
    return _quality_values(require(hashhop, "pyramidinfer_hashhop").assign(beta=math.nan))


def _quality_values(rows: pd.DataFrame) -> pd.DataFrame:
    columns = ["model", "beta", "setting", "ours", "low", "high", "samples", "run"]
    means = pd.DataFrame(
        [
            (*key, *estimate_quality(of_key), len(of_key), runs_of(of_key))
            for key, of_key in groups(rows, ["model", "beta", "variant"])
        ],
        columns=columns,
    )
    return _cells(means, quantity="h_gq", status="measured", **{name: means[name] for name in columns[2:-1]})


def longest_values(memory: pd.DataFrame) -> pd.DataFrame:
    """l_m by protocol of the prefill; that of PyramidInfer is the method's own, in one pass."""
    # A measured length replaces a computed one, whatever the order of the rows.
    rows = memory.sort_values("source", key=lambda source: source == "measured", kind="stable")
    others = rows["protocol"] == "pyramidinfer"
    rows = rows.assign(beta=rows["beta"].mask(others), protocol=rows["protocol"].mask(others, "one_shot"))
    status = rows["source"].mask(rows["at_least"].eq(True), AT_LEAST) if "at_least" in rows else rows["source"]
    lengths = _cells(rows, quantity="l_m", setting=rows["protocol"], ours=rows["l_m"].astype(float), status=status)
    if "limit" not in rows:
        return lengths
    limited = rows[(rows["limit"] >= 0) & (rows["source"] != "measured")]
    limits = _cells(limited, quantity="l_m", setting="limit", ours=limited["limit"].astype(float), status="computed")
    return pd.concat([lengths, limits])


def settings_of(cells: pd.DataFrame, quantity: str) -> list[str]:
    """The settings under which a quantity was measured for a model, from its cells, the one to compare first; never
    empty.

    Others than those of `SETTINGS`, such as GPUs of recordings, are shown beside and never compared.
    """
    known, usual = set(cells.loc[cells["quantity"] == quantity, "setting"]), SETTINGS[quantity]
    if quantity == "l_m" or known.isdisjoint(usual):
        known.add(usual[0])  # of l_m the paper's own protocol: known or not, no other is compared with its numbers
    return in_order(sorted(known), usual)


def baseline_scores(baseline: pd.DataFrame, cells: pd.DataFrame) -> dict[str, float]:
    """Mean h_gq before conversion of every model that has an h_gq, in the layout that is compared with the paper's.

    Raises:
        ValueError: missing columns, no rows, or none of such a model in that layout.
    """
    require(baseline, "baseline")
    score = (baseline["correct"] / baseline["hops"]).groupby([baseline["model"], baseline["variant"]]).mean()
    scores = {}
    for model, of_model in groups(cells[cells["quantity"] == "h_gq"], "model"):
        layout = settings_of(of_model, "h_gq")[0]
        if (model, layout) not in score.index:
            raise ValueError(
                f"baseline measurements have no row of {model} in the layout {layout}: its h_gq at any beta cannot "
                "be judged without h_gq before conversion"
            )
        scores[model] = float(score[model, layout])
    return scores


def with_undecided(cells: pd.DataFrame, scores: Mapping[str, float]) -> pd.DataFrame:
    """The cells; every h_gq of a converted model whose original cannot be compared with has the status "undecided"."""
    weak = [model for model, score in scores.items() if why_h_gq_undecided(model, score)]
    open_ones = (cells["quantity"] == "h_gq") & (cells["beta"] > 0) & cells["model"].isin(weak)
    return cells.assign(status=cells["status"].mask(open_ones, UNDECIDED))


def over_original(values: pd.Series) -> pd.Series:
    """Values over those of the original, which has beta 0 and is alike in all other levels of the index.

    Without an original a value becomes NaN.

    Raises:
        KeyError: no value is of an original.
    """
    original = values.xs(0.0, level="beta")
    return values / original.reindex(values.droplevel("beta").index).to_numpy()


def perplexity_values(perplexity: pd.DataFrame) -> pd.DataFrame:
    """Perplexity of every model, beta and stage: exp(nats / tokens), each summed, mean over the seeds."""
    keys = ["model", "beta", "stage", "seed"]
    sums = perplexity.groupby(keys, sort=False)[["negative_log_likelihood", "tokens"]].sum().reset_index()
    sums["ours"] = np.exp(sums["negative_log_likelihood"] / sums["tokens"])
    runs = [(*key, runs_of(rows)) for key, rows in groups(perplexity, keys[:-1])]
    means = sums.groupby(keys[:-1], sort=False).agg(
        ours=("ours", "mean"),
        lowest_seed=("ours", "min"),
        highest_seed=("ours", "max"),
        seeds=("seed", "nunique"),
        tokens=("tokens", "max"),
    )
    return means.reset_index().merge(pd.DataFrame(runs, columns=[*keys[:-1], "runs"]))


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
