"""The printed numbers of Tables 1-5 and of the text: this very number, of this very model."""

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from recurformer.claims.claim import ALLOWED_DROP, INCONSISTENCIES, ROUNDING, Finding
from recurformer.claims.evidence import Evidence, Missing, Rows
from recurformer.data.sizes import PUBLISHED
from recurformer.paper import CACHE_LENGTHS, CELLS, EXPONENTS, PrintedCell, label
from recurformer.results.cells import (
    AT_LEAST,
    LAYOUTS,
    PYRAMIDINFER,
    baseline_scores,
    cache_values,
    contribution_values,
    exponents,
    longest_values,
    perplexity_values,
    pyramidinfer_quality,
    quality_values,
    settings_of,
)
from recurformer.results.frames import records
from recurformer.results.learned import NEAR_PRINTED, why_h_gq_undecided
from recurformer.results.words import estimated, interval, number

MAMBAS_CACHE = next(cell for cell in CELLS if cell.id == "table1/generation/mamba/cache_size")


def cache_tolerance(model: str) -> float:
    """Half of the last digit: Llama2-7B's cells are printed with four decimals and rounded to three."""
    return 0.0005 if model == "llama2-7b" else 0.00005


def growth(evidence: Evidence, allowed: float, cell: PrintedCell = MAMBAS_CACHE) -> Finding:
    """The exponent of bytes over length against the highest power in the printed order, at any size; where no cell is
    given, of Mamba's cache during generation.
    """
    rows = evidence.rows("complexity", mixer=cell.method, phase=cell.part, quantity=cell.quantity)
    exponent = exponents(rows)["exponent"]
    holds = abs(exponent - EXPONENTS[cell.part, cell.method, cell.quantity]) <= allowed
    return Finding(holds, f"exponent {number(exponent, 2)}", {"complexity": rows.index})


def _caches(evidence: Evidence, cell: PrintedCell) -> tuple[Rows, pd.Series]:
    """The rows of the caches of a cell, and their ratios by the unit of selection, kv_group before head."""
    length = CACHE_LENGTHS[cell.quantity]
    if cell.method == PYRAMIDINFER:
        rows = evidence.rows("pyramidinfer", model=cell.model, length=length)
        return {"pyramidinfer": rows.index}, rows["ratio"].head(1)
    rows = evidence.rows("cache", model=cell.model, beta=cell.beta, length=length)
    return {"cache": rows.index}, cache_values(rows).set_index("setting")["ours"].sort_index(ascending=False)


WHOLE = "audit/whole-heads/"
SHARED = {"all": "once all of its query heads are replaced", "any": "once any of them is"}
"""When a key-value head that several query heads share may be freed: the paper does not say."""


def _reach(evidence: Evidence, cell: PrintedCell) -> dict[str, tuple[float, float]]:
    """The smallest and the largest cache over the original's that some choice of heads leaves, for each of `SHARED`.

    Over all layers or in each, rounded up or down. What replaces the heads counts as it was counted for the choice at
    hand: its size hardly depends on the choice.
    """
    shape = PUBLISHED[cell.model]
    layers, each = shape["num_hidden_layers"], shape["num_attention_heads"]
    heads, shared = layers * each, layers * shape["num_key_value_heads"]
    group, share = heads // shared, round(each * float(cell.beta or 0), 6)
    least, most = layers * math.floor(share), layers * math.ceil(share)
    freed = {
        "all": (max(0, least - (heads - shared)), most // group),
        "any": (-(-least // group), min(most, shared)),
    }
    rows = evidence.rows("cache", model=cell.model, length=CACHE_LENGTHS[cell.quantity])
    whole = rows.loc[rows["beta"] == 0, "kv_bytes"].max()
    ours = rows[rows["beta"] == cell.beta]
    states = ours["ratio"] - ours["kv_bytes"] / whole
    return {
        name: (1 - many / shared + states.min(), 1 - few / shared + states.max()) for name, (few, many) in freed.items()
    }


def _within(evidence: Evidence, cell: PrintedCell, value: float) -> list[str]:
    """The readings of `SHARED` under which a printed cache lies between those that choices of heads leave."""
    near = cache_tolerance(cell.model)
    return [name for name, (low, high) in _reach(evidence, cell).items() if low - near <= value <= high + near]


def _by_choice(evidence: Evidence, cell: PrintedCell, value: float) -> str:
    """Why a cache that was not counted is not contradicted: it depends on which heads are replaced."""
    if cell.method == PYRAMIDINFER or not (within := _within(evidence, cell, value)):
        return ""
    ranges = " and ".join(
        f"{number(low, 4)} to {number(high, 4)} if a key-value head is freed {SHARED[name]}"
        for name, (low, high) in _reach(evidence, cell).items()
    )
    audits = (name for name, found in INCONSISTENCIES.items() if name.startswith(WHOLE) and cell.id in found.cites)
    pair = "".join(f"; but no choice gives this cell and that of the other length: `{name}`" for name in audits)
    where = "both" if len(within) == len(SHARED) else f"the {'first' if 'all' in within else 'second'} only"
    return (
        f"other choices of heads leave {ranges}; {number(value, 4)} lies in {where}; which heads go depends on "
        f"the published weights, which were not profiled{pair}; `text/caches-by-beta` has all β"
    )


def caches_by_beta(evidence: Evidence, models: tuple[str, ...]) -> Finding:
    """Whether under one way of sharing a key-value head all printed caches of a model lie between those that choices of
    heads leave.
    """
    texts, possible, rows = [], True, evidence.rows("cache", model=list(models))
    for model in models:
        cells = [
            cell
            for cell in CELLS
            if cell.table == 4 and cell.model == model and cell.beta and cell.quantity in CACHE_LENGTHS
        ]
        reached = [_within(evidence, cell, cell.value) for cell in cells]
        within = {name: sum(name in one for one in reached) for name in SHARED}
        possible &= len(cells) in within.values()
        shown = ", ".join(f"{within[name]} if it is freed {when}" for name, when in SHARED.items())
        texts.append(f"{label(model)}: of {len(cells)} caches so many lie between what choices of heads leave: {shown}")
    return Finding(possible, "; ".join(texts), {"cache": rows.index})


def cache(evidence: Evidence, cell: PrintedCell) -> Finding:
    """The counted cache against the printed fraction, under every reading of grouped-query attention."""
    rows, ratios = _caches(evidence, cell)
    holds = bool(((ratios - cell.value).abs() <= cache_tolerance(cell.model)).any())
    distinct = ratios.round(4).nunique() > 1
    text = ", ".join(f"{number(ratio, 4)} ({unit})" for unit, ratio in ratios.items()) if distinct else ""
    finding = Finding(holds, text or number(float(ratios.iloc[0]), 4), rows)
    if cell.method == PYRAMIDINFER:
        return replace(finding, remark="0.7 is the fraction that is kept, not evicted")
    if not cell.beta:
        return replace(finding, remark="1 by definition (section 4.1)", by_definition=True)
    if holds:
        return finding
    off = number(float((ratios - cell.value).abs().min()), 4)
    remark = f"off by {off} under the nearest reading, and beyond what any choice of heads leaves"
    return replace(finding, remark=remark, still_open=_by_choice(evidence, cell, cell.value))


def length(evidence: Evidence, cell: PrintedCell, allowed: float) -> Finding:
    """The longest measured prompt; what a memory model computes is no measurement."""
    protocol = "pyramidinfer" if cell.method == PYRAMIDINFER else "one_shot"
    rows = evidence.rows("memory", model=cell.model, beta=cell.beta or 0.0, protocol=protocol)
    longest = _compared(longest_values(rows), "l_m")
    text = number(longest.ours, 0)
    if longest.status not in ("measured", AT_LEAST):
        raise Missing(f"computed only ({text} by the memory model), not measured on a GPU")
    text, still_open = (f"at least {text}", "nothing longer was tried") if longest.status == AT_LEAST else (text, "")
    if longest.ours > cell.value * (1 + allowed):
        still_open = "longer, with the logits of the last token and fused attention; the paper names neither"
    reached = longest.ours / cell.value - 1
    near = reached <= allowed and (reached >= -allowed or longest.status == AT_LEAST)  # a lower bound refutes nothing
    return Finding(near, text, {"memory": rows.index}, still_open=still_open)


def _compared(cells: pd.DataFrame, quantity: str) -> Any:
    """Of the cells of one line the one under the setting that is compared with the paper's."""
    return next(records(cells[cells["setting"] == settings_of(cells, quantity)[0]]))


def quality(evidence: Evidence, cell: PrintedCell) -> Finding:
    """Mean h_gq of the model on HashHop at the paper's number of hops, where its original has the printed one."""
    kind, cells_of, changed = "hashhop", quality_values, bool(cell.beta)
    rows = evidence.flattened(kind, model=cell.model, beta=cell.beta or 0.0)
    if cell.method == PYRAMIDINFER:  # evicts from the cache of the original trained likewise
        kind, cells_of, changed = "pyramidinfer_hashhop", pyramidinfer_quality, True
        rows = evidence.rows(kind, model=cell.model)
    baseline = evidence.rows("baseline", model=cell.model)
    cells = cells_of(rows)
    measured = _compared(cells, "h_gq")
    holds = measured.low - NEAR_PRINTED <= cell.value <= measured.high + NEAR_PRINTED
    wide = holds and (measured.high - measured.low) / 2 > ALLOWED_DROP  # the fewer samples, the more values it reaches
    still_open = f"the interval is wider than ± {ALLOWED_DROP:g}: it reaches too much" if wide else ""
    if changed:
        still_open = why_h_gq_undecided(cell.model, baseline_scores(baseline, cells)[cell.model]) or still_open
    text = f"{estimated(measured.ours, measured.low, measured.high, 3)} ({LAYOUTS[measured.setting]})"
    looked_at = {kind: rows.index, "baseline": baseline.index}
    return Finding(holds, text, looked_at, int(measured.samples), still_open)


def perplexity(evidence: Evidence, cell: PrintedCell, allowed: float) -> Finding:
    """Perplexity after continual training on held-out articles."""
    where = {"model": cell.model, "beta": cell.beta, "stage": "trained", "split": "validation"}
    rows = evidence.flattened("perplexity", **where)
    value = float(perplexity_values(rows)["ours"].iloc[0])
    return Finding(abs(value / cell.value - 1) <= allowed, number(value, 3), {"perplexity": rows.index})


def contribution(evidence: Evidence, cell: PrintedCell, allowed: float) -> Finding:
    """Mean contribution, or either reading of its interval."""
    norm, part = cell.quantity.split("_")
    rows = evidence.rows("contribution", model=cell.model, norm=norm, tokens=cell.part)
    measured = contribution_values(rows).iloc[0]
    about: dict[str, Any] = {"rows": {"contribution": rows.index}, "samples": int(measured["samples"])}
    if part == "mean":
        mean = float(measured["ours"])
        return Finding(abs(mean / cell.value - 1) <= allowed, number(mean, 4), **about)
    low, high = cell.bounds
    near = allowed * (high - low)
    readings = [(float(measured[f"{kind}_low"]), float(measured[f"{kind}_high"])) for kind in ("mean", "spread")]
    known = [ends for ends in readings if not math.isnan(ends[0])]
    holds = any(abs(ours - low) <= near and abs(upper - high) <= near for ours, upper in known)
    return Finding(holds, " or ".join(interval(*ends, 4) for ends in known), **about)


def reduction(evidence: Evidence, cell: PrintedCell) -> Finding:
    """Counted reduction in percent against the one in the text."""
    rows, ratios = _caches(evidence, cell)
    percent = 100 * (1 - ratios)
    nearest = float(percent.iloc[int((percent - cell.value).abs().argmin())])
    decimals = len(cell.printed.partition(".")[2])
    holds = abs(nearest - cell.value) <= cell.half_digit + ROUNDING
    still_open = "" if holds else _by_choice(evidence, cell, 1 - cell.value / 100)
    return Finding(holds, f"{nearest:.{decimals + 1}f} %", rows, still_open=still_open)
