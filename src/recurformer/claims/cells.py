"""The printed numbers of Tables 1-5 and of the text: this very number, of this very model."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd

from recurformer.claims.claim import ALLOWED_DROP, Finding, Missing, Undecided
from recurformer.claims.evidence import Evidence
from recurformer.paper import BACKBONE_LABELS, EXPONENTS, PrintedCell, TextNumber
from recurformer.paper import TABLE2_BETAS as BETAS
from recurformer.paper.sizes import CACHE_LENGTHS
from recurformer.published import PUBLISHED
from recurformer.render.ablations import estimate_quality
from recurformer.render.tables.comparison import PYRAMIDINFER
from recurformer.render.tables.measured import NEEDED
from recurformer.render.tables.table1 import exponent_of
from recurformer.render.words import estimated, interval, number

ROUNDING = 1e-9
WIDTHS = frozenset(PUBLISHED[model]["hidden_size"] for model in BACKBONE_LABELS)
"""Model dimensions of the paper's backbones."""
NO_PYRAMIDINFER = "PyramidInfer is measured in small models only, by the ablations"


def cache_tolerance(model: str) -> float:
    """Half of the last digit: Llama2-7B's cells are printed with four decimals and rounded to three."""
    return 0.0005 if model == "llama2-7b" else 0.00005


def at_paper_sizes(judge: Callable[..., Finding]) -> Callable[..., Finding]:
    """The judge of a printed number, of which measurements at other sizes than the paper's say nothing."""

    @wraps(judge)
    def judged(evidence: Evidence, *args: Any, **given: Any) -> Finding:
        finding = judge(evidence, *args, **given)
        if not evidence.at_paper_sizes():
            raise Missing("measured at other sizes than the paper's")
        return finding

    return judged


def has_paper_width(complexity: pd.DataFrame) -> bool:
    """Whether the model whose growth was measured is as wide as one of the paper's; rows of unknown width are not."""
    return "width" in complexity and set(complexity["width"]) <= WIDTHS


def growth(evidence: Evidence, cell: PrintedCell, allowed: float) -> Finding:
    """The exponent of bytes over length against the highest power in the printed order, at any size."""
    rows = evidence.rows("complexity", mixer=cell.method, phase=cell.part, quantity=cell.quantity)
    exponent = exponent_of(rows)
    expected = EXPONENTS[cell.part, cell.method, cell.quantity]
    holds = abs(exponent - expected) <= allowed
    return Finding(holds, f"exponent {exponent:.2f}", has_paper_width(rows))


def pyramidinfer_ratio(evidence: Evidence, model: str, length: int) -> float:
    """The counted cache of PyramidInfer over the original's; a size computed from the printed setting is none."""
    rows = evidence.rows("pyramidinfer", model=model, length=length)
    ratio = float(rows["ratio"].iloc[0])
    if "source" not in rows:
        raise Missing(f"computed only ({number(ratio, 4)} from the printed setting), no cache counted")
    return ratio


@at_paper_sizes
def cache(evidence: Evidence, cell: PrintedCell) -> Finding:
    """The counted cache against the printed share, under every reading of grouped-query attention."""
    length = CACHE_LENGTHS[cell.quantity]
    if cell.method == PYRAMIDINFER:
        ratio = pyramidinfer_ratio(evidence, cell.model, length)
        near = abs(ratio - cell.value) <= cache_tolerance(cell.model)
        return Finding(near, number(ratio, 4), at_scale=True, remark="0.7 is the fraction that is kept, not evicted")
    rows = evidence.rows("cache", model=cell.model, beta=cell.beta, length=length)
    ratios = rows.groupby("unit", sort=False)["ratio"].first().sort_index(ascending=False)  # kv_group before head
    holds = bool(((ratios - cell.value).abs() <= cache_tolerance(cell.model)).any())
    distinct = ratios.round(4).nunique() > 1
    text = ", ".join(f"{number(ratio, 4)} ({unit})" for unit, ratio in ratios.items()) if distinct else ""
    ours = text or number(float(ratios.iloc[0]), 4)
    if not cell.beta:
        return Finding(holds, ours, at_scale=True, remark="1 by definition (section 4.1)", by_definition=True)
    off = number(float((ratios - cell.value).abs().min()), 4)
    remark = "" if holds else f"off by {off} under the nearest reading; the audit has the whole column"
    return Finding(holds, ours, at_scale=True, remark=remark)


def ends_at_its_maximum(memory: pd.DataFrame) -> bool:
    """Whether a measured length is only known to be at least so long, because nothing longer was tried."""
    return "at_least" in memory and bool(memory["at_least"].eq(True).any())


@at_paper_sizes
def length(evidence: Evidence, cell: PrintedCell, allowed: float) -> Finding:
    """The longest measured prompt; what a memory model computes is no measurement."""
    if cell.method == PYRAMIDINFER:
        raise Missing(NO_PYRAMIDINFER)
    rows = evidence.rows("memory", model=cell.model, beta=cell.beta, protocol="one_shot")
    measured = rows[rows["source"] == "measured"]
    if measured.empty:
        raise Missing(f"computed only ({number(rows['l_m'].iloc[0], 0)} by the memory model), not measured on a GPU")
    longest = float(measured["l_m"].iloc[0])
    if ends_at_its_maximum(measured) and longest < cell.value * (1 + allowed):
        raise Undecided(f"at least {number(longest, 0)}: nothing longer was tried")
    return Finding(abs(longest / cell.value - 1) <= allowed, number(longest, 0), at_scale=True)


@at_paper_sizes
def quality(evidence: Evidence, cell: PrintedCell, allowed: float) -> Finding:
    """Mean h_gq of the model on HashHop at the paper's number of hops."""
    if cell.method == PYRAMIDINFER:
        raise Missing(NO_PYRAMIDINFER)
    rows = evidence.flattened("hashhop", model=cell.model, beta=cell.beta)
    baseline = evidence.rows("baseline", model=cell.model)
    variant = "official" if "official" in set(rows["variant"]) else "paper"
    rows, baseline = rows[rows["variant"] == variant], baseline[baseline["variant"] == variant]
    learned = float((baseline["correct"] / baseline["hops"]).mean())
    if cell.beta and not learned >= NEEDED:
        raise Undecided(f"the original reaches h_gq {learned:.3f} only; a comparison needs {NEEDED:g}")
    mean, low, high = estimate_quality(rows)
    holds = low - allowed <= cell.value <= high + allowed
    wide = holds and (high - low) / 2 > ALLOWED_DROP  # the fewer samples, the more values an interval reaches
    still_open = f"the interval is wider than ± {ALLOWED_DROP:g}: it reaches too much" if wide else ""
    return Finding(holds, estimated(mean, low, high, 3), True, len(rows), still_open)


@at_paper_sizes
def perplexity(evidence: Evidence, cell: PrintedCell, allowed: float) -> Finding:
    """Perplexity after continual training on held-out articles."""
    where = {"model": cell.model, "beta": cell.beta, "stage": "trained", "split": "validation"}
    rows = evidence.flattened("perplexity", **where)
    sums = rows.groupby("seed")[["negative_log_likelihood", "tokens"]].sum()
    value = float(np.exp(sums["negative_log_likelihood"] / sums["tokens"]).mean())
    return Finding(abs(value / cell.value - 1) <= allowed, number(value, 3), at_scale=True)


@at_paper_sizes
def contribution(evidence: Evidence, cell: PrintedCell, allowed: float) -> Finding:
    """Mean contribution, or either reading of its interval."""
    norm, part = cell.quantity.split("_")
    rows = evidence.rows("contribution", model=cell.model, norm=norm, tokens=cell.part)
    samples = int(rows["samples"].max())
    if part == "mean":
        mean = float(rows["mean"].iloc[0])
        return Finding(abs(mean / cell.value - 1) <= allowed, number(mean, 4), at_scale=True, samples=samples)
    low, high = cell.bounds
    near = allowed * (high - low)
    found = list(zip(rows["low"].to_numpy(dtype=float), rows["high"].to_numpy(dtype=float), strict=True))
    holds = any(abs(ours - low) <= near and abs(upper - high) <= near for ours, upper in found)
    return Finding(holds, " or ".join(interval(*ends, 4) for ends in found), at_scale=True, samples=samples)


@at_paper_sizes
def reduction(evidence: Evidence, cell: TextNumber) -> Finding:
    """Counted reduction in percent against the one in the text."""
    length = CACHE_LENGTHS[cell.quantity]
    if cell.method == PYRAMIDINFER:
        ratios = pd.Series([pyramidinfer_ratio(evidence, cell.model, length)])
    else:
        ratios = evidence.rows("cache", model=cell.model, beta=BETAS[cell.model], length=length)["ratio"]
    percent = 100 * (1 - ratios)
    nearest = float(percent.iloc[int(np.argmin((percent - cell.value).abs()))])
    decimals = len(cell.printed.partition(".")[2])
    holds = abs(nearest - cell.value) <= cell.half_digit + ROUNDING
    return Finding(holds, f"{nearest:.{decimals + 1}f} %", at_scale=True)
