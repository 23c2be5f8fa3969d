"""The claims that the cells of Tables 1-5 make: this very number, of this very model."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from recurformer.paper import BACKBONE_LABELS, CELLS, EXPONENTS, PrintedCell, label
from recurformer.paper.sizes import CACHE_LENGTHS
from recurformer.published import PUBLISHED
from recurformer.render.ablations import estimate_quality
from recurformer.render.audit.tables import cache_tolerance
from recurformer.render.claims.claim import Claim, Finding, Missing, Undecided
from recurformer.render.claims.evidence import Evidence
from recurformer.render.claims.power import flattened_rows
from recurformer.render.claims.tolerances import ALLOWED_DROP
from recurformer.render.tables.cell_text import interval, number
from recurformer.render.tables.comparison import PYRAMIDINFER
from recurformer.render.tables.measured import NEEDED
from recurformer.render.tables.table1 import exponent_of

EXPONENT_TOLERANCE = 0.05
WIDTHS = frozenset(PUBLISHED[model]["hidden_size"] for model in BACKBONE_LABELS)
"""Model dimensions of the paper's backbones."""
NO_PYRAMIDINFER = "PyramidInfer is measured in small models only, by the ablations"
LENGTH_TOLERANCE = 0.05
QUALITY_TOLERANCE = 0.05
PERPLEXITY_TOLERANCE = 0.05
CONTRIBUTION_TOLERANCE = 0.25


def has_paper_width(complexity: pd.DataFrame) -> bool:
    """Whether the model whose growth was measured is as wide as one of the paper's; rows of unknown width are not."""
    return "width" in complexity and set(complexity["width"]) <= WIDTHS


def judge_growth(cell: PrintedCell, evidence: Evidence) -> Finding:
    """The exponent of bytes over length against the highest power in the printed order of growth."""
    rows = evidence.rows("complexity", mixer=cell.method, phase=cell.part, quantity=cell.quantity)
    exponent = exponent_of(rows)
    expected = EXPONENTS[cell.part, cell.method, cell.quantity]
    holds = abs(exponent - expected) <= EXPONENT_TOLERANCE
    return Finding(holds, f"exponent {exponent:.2f}", has_paper_width(rows))


def computed_only(evidence: Evidence, model: str, length: int) -> Missing:
    """Why PyramidInfer's cache decides nothing: its size follows from the printed setting, no cache was counted."""
    ratio = float(evidence.rows("pyramidinfer", model=model, length=length)["ratio"].iloc[0])
    return Missing(f"computed only ({number(ratio, 4)} from the printed setting), no cache counted; {NO_PYRAMIDINFER}")


def judge_cache(cell: PrintedCell, evidence: Evidence) -> Finding:
    """The counted cache against the printed share, under every reading of grouped-query attention."""
    length = CACHE_LENGTHS[cell.quantity]
    if cell.method == PYRAMIDINFER:
        raise computed_only(evidence, cell.model, length)
    rows = evidence.rows("cache", model=cell.model, beta=cell.beta, length=length)
    ratios = rows.groupby("unit", sort=False)["ratio"].first().sort_index(ascending=False)  # kv_group before head
    holds = bool(((ratios - cell.value).abs() <= cache_tolerance(cell.model)).any())
    distinct = ratios.round(4).nunique() > 1
    text = ", ".join(f"{number(ratio, 4)} ({unit})" for unit, ratio in ratios.items()) if distinct else ""
    ours = text or number(float(ratios.iloc[0]), 4)
    if not cell.beta:
        return Finding(holds, ours, at_scale=True, reason="1 by definition (section 4.1)", by_definition=True)
    off = number(float((ratios - cell.value).abs().min()), 4)
    reason = "" if holds else f"off by {off} under the nearest reading; the audit has the whole column"
    return Finding(holds, ours, at_scale=True, reason=reason)


def ends_at_its_maximum(memory: pd.DataFrame) -> bool:
    """Whether a measured length is only known to be at least so long, because nothing longer was tried."""
    return "at_least" in memory and bool(memory["at_least"].eq(True).any())


def judge_length(cell: PrintedCell, evidence: Evidence) -> Finding:
    """The longest measured prompt; what a memory model computes is no measurement."""
    if cell.method == PYRAMIDINFER:
        raise Missing(NO_PYRAMIDINFER)
    rows = evidence.rows("memory", model=cell.model, beta=cell.beta, protocol="one_shot")
    measured = rows[rows["source"] == "measured"]
    if measured.empty:
        raise Missing(f"computed only ({number(rows['l_m'].iloc[0], 0)} by the memory model), not measured on a card")
    longest = float(measured["l_m"].iloc[0])
    if ends_at_its_maximum(measured) and longest < cell.value * (1 + LENGTH_TOLERANCE):
        raise Undecided(f"at least {number(longest, 0)}: nothing longer was tried")
    return Finding(abs(longest / cell.value - 1) <= LENGTH_TOLERANCE, number(longest, 0), at_scale=True)


def judge_quality(cell: PrintedCell, evidence: Evidence) -> Finding:
    """Mean h_gq of the model on HashHop at the paper's number of hops."""
    if cell.method == PYRAMIDINFER:
        raise Missing(NO_PYRAMIDINFER)
    rows = flattened_rows(evidence, "hashhop", model=cell.model, beta=cell.beta)
    baseline = evidence.rows("baseline", model=cell.model)
    variant = "official" if "official" in set(rows["variant"]) else "paper"
    rows, baseline = rows[rows["variant"] == variant], baseline[baseline["variant"] == variant]
    learned = float((baseline["correct"] / baseline["hops"]).mean())
    if cell.beta and not learned >= NEEDED:
        raise Undecided(f"the original reaches h_gq {learned:.3f} only; a comparison needs {NEEDED:g}")
    mean, low, high = estimate_quality(rows)
    holds = low - QUALITY_TOLERANCE <= cell.value <= high + QUALITY_TOLERANCE
    wide = holds and (high - low) / 2 > ALLOWED_DROP  # the fewer samples, the more values an interval reaches
    reason = f"the interval is wider than ± {ALLOWED_DROP:g}: it reaches too much" if wide else ""
    return Finding(
        holds, f"{number(mean, 3)} {interval(low, high, 3)}", at_scale=True, samples=len(rows), reason=reason,
        decided=not wide,
    )  # fmt: skip


def judge_perplexity(cell: PrintedCell, evidence: Evidence) -> Finding:
    """Perplexity after continual training on held-out articles."""
    where = {"model": cell.model, "beta": cell.beta, "stage": "trained", "split": "validation"}
    rows = flattened_rows(evidence, "perplexity", **where)
    sums = rows.groupby("seed")[["negative_log_likelihood", "tokens"]].sum()
    value = float(np.exp(sums["negative_log_likelihood"] / sums["tokens"]).mean())
    return Finding(abs(value / cell.value - 1) <= PERPLEXITY_TOLERANCE, number(value, 3), at_scale=True)


def judge_contribution(cell: PrintedCell, evidence: Evidence) -> Finding:
    """Mean contribution, or either reading of its interval."""
    norm, part = cell.quantity.split("_")
    rows = evidence.rows("contribution", model=cell.model, norm=norm, tokens=cell.part)
    samples = int(rows["samples"].max())
    if part == "mean":
        mean = float(rows["mean"].iloc[0])
        return Finding(
            abs(mean / cell.value - 1) <= CONTRIBUTION_TOLERANCE, number(mean, 4), at_scale=True, samples=samples
        )
    low, high = cell.bounds
    near = CONTRIBUTION_TOLERANCE * (high - low)
    found = list(zip(rows["low"].to_numpy(dtype=float), rows["high"].to_numpy(dtype=float), strict=True))
    holds = any(abs(ours - low) <= near and abs(upper - high) <= near for ours, upper in found)
    return Finding(holds, " or ".join(interval(*ends, 4) for ends in found), at_scale=True, samples=samples)


Judge = Callable[[PrintedCell, Evidence], Finding]
JUDGES: dict[str, tuple[Judge, str, str]] = {
    "cache_peak": (judge_growth, "the measured growth exponent is that of the printed order",
        f"{EXPONENT_TOLERANCE:g}: terms of lower order bend the fit over finite lengths"),
    "cs_10k": (judge_cache, "the counted cache over the original's is the printed share, under some reading of GQA",
        "half of the last digit: the fourth decimal, in Llama2-7B's cells, which end in 0, the third"),
    "l_m": (judge_length, "the longest prompt that one forward pass takes in 80 GiB is the printed one",
        f"{LENGTH_TOLERANCE:.0%}: what else lies in the card's memory is not known"),
    "h_gq": (judge_quality, "the 95 % interval of mean h_gq reaches the printed value",
        f"{QUALITY_TOLERANCE:g} beyond an interval of at most ± {ALLOWED_DROP:g}: the paper gives neither samples nor "
        "seeds"),
    "perplexity": (judge_perplexity, "perplexity on held-out articles is the printed one",
        f"{PERPLEXITY_TOLERANCE:.0%}: other articles of the same Wikipedia"),
    "l1_mean": (judge_contribution, "the mean contribution, or one reading of its interval, is the printed one",
        f"{CONTRIBUTION_TOLERANCE:.0%}: the paper does not say over which queries it averages"),
}  # fmt: skip
for _same, _as in {
    "cache_size": "cache_peak", "cs_60k": "cs_10k", "l1_interval": "l1_mean", "l2_mean": "l1_mean",
    "l2_interval": "l1_mean",
}.items():  # fmt: skip
    JUDGES[_same] = JUDGES[_as]


def at_paper_sizes(finding: Finding, evidence: Evidence) -> Finding:
    """A finding about a printed number, which other sizes than the paper's say nothing about.

    Raises:
        Missing: it was measured at other sizes.
    """
    if not evidence.at_paper_sizes():
        raise Missing("measured at other sizes than the paper's")
    return finding


def judge_number(judge: Judge, cell: PrintedCell, evidence: Evidence) -> Finding:
    """A cell's number; orders of growth are the same at every size."""
    finding = judge(cell, evidence)
    return finding if judge is judge_growth else at_paper_sizes(finding, evidence)


def needs_of(model: str) -> str:
    """What it takes to measure one of the paper's models."""
    return f"the published weights of {label(model)} on a card of 80 GB (config/paper.yaml)"


def cell_claims() -> list[Claim]:
    """One claim for every printed cell."""
    claims = []
    for cell in CELLS:
        judge, test, tolerance = JUDGES[cell.quantity]
        counted = cell.kind == "analytic"
        claims.append(
            Claim(
                id=cell.id, place=cell.place, statement=cell.printed, printed=cell.printed, kind=cell.kind,
                test=test, tolerance=tolerance,
                needs="counting on the published shapes" if counted else needs_of(cell.model),
                judge=partial(judge_number, judge, cell),
            )
        )  # fmt: skip
    return claims
