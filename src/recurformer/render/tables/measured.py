"""What the measurements say about l_m, h_gq and the cache sizes of a model at one beta, for Tables 2 and 4."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from recurformer.paper.sizes import CACHE_LENGTHS
from recurformer.render.ablations import estimate_quality
from recurformer.render.measurements import groups, records, require, runs_of
from recurformer.render.words import NOT_RUN

QUANTITIES = ("l_m", "h_gq", *CACHE_LENGTHS)
SETTINGS = {
    "l_m": ("one_shot", "chunked", "limit"),
    "h_gq": ("official", "paper"),
    **dict.fromkeys(CACHE_LENGTHS, ("kv_group", "head")),
}
"""How each quantity can be measured (protocol of the prefill, or what no prefill can exceed; layout of the task;
selection unit): the first that a model has is compared with the paper, the others stand beside it."""
HEADINGS = {"paper": "appendix layout", "official": "official layout", "head": "unit head"}
"""Settings that a recording of a card names by other words."""
NEEDED = 0.95
"""Lowest h_gq before conversion at which h_gq of the converted models is shown. Project rule: a baseline that has not
learned its task says nothing about beta."""
KINDS = ("cache_peak", "hashhop", "baseline", "memory")
"""What Tables 2 and 4 take from a recording."""
Recorded = Mapping[str, Mapping[str, pd.DataFrame]]
"""Name of a card -> kind of measurement -> rows that a recording keeps of it."""


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


def quality_values(hashhop: pd.DataFrame) -> dict[Key, Value]:
    """h_gq by layout of the task."""
    values: dict[Key, Value] = {}
    for (model, beta, variant), rows in groups(hashhop, ["model", "beta", "variant"]):
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
        source = "at least" if getattr(row, "at_least", False) is True else row.source
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
        key: not_run if key[1] == "h_gq" and scores[key[0].model] < NEEDED else value for key, value in values.items()
    }


def _card_values(frames: Mapping[str, pd.DataFrame]) -> dict[Key, Value]:
    """What was measured on a card; not what is counted or computed without one, nor h_gq without its baseline."""
    values: dict[Key, Value] = {}
    if "cache_peak" in frames:
        values |= cache_values(require(frames["cache_peak"], "cache_peak").dropna(subset="ratio"), "measured")
    if "memory" in frames:
        memory = require(frames["memory"], "memory")
        values |= longest_values(memory[memory["source"] == "measured"])
    if "hashhop" in frames and "baseline" in frames:
        scores = quality_values(require(frames["hashhop"], "hashhop"))
        values |= without_weak(scores, baseline_scores(frames["baseline"], scores))
    return values


def recorded_values(recorded: Recorded) -> dict[Key, Value]:
    """The values of every card under settings that carry its name.

    Raises:
        ValueError: a recording lacks columns, or h_gq before conversion of a model whose h_gq it has.
    """
    values = {}
    for card, frames in recorded.items():
        for (row, quantity, setting), value in _card_values(frames).items():
            usual = setting == SETTINGS[quantity][0]
            values[row, quantity, card if usual else f"{card}, {HEADINGS.get(setting, setting)}"] = value
    return values


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
