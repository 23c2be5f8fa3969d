"""What the text says about caches, the inputs that they leave room for, and speed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pandas as pd

from recurformer.claims.claim import ROUNDING, Finding
from recurformer.claims.evidence import Evidence, Missing, Rows, Undecided, labels
from recurformer.paper import (
    BACKBONE_LABELS,
    CACHE_LENGTHS,
    D_CONV,
    D_STATE,
    EXPAND,
    LLAMA2_7B_LAYERS,
    LLAMA2_7B_WIDTH,
    label,
)
from recurformer.paper import TABLE2_BETAS as BETAS
from recurformer.records import ancestors, record_of
from recurformer.results.cells import AT_LEAST, longest_values, over_original
from recurformer.results.frames import groups, records
from recurformer.results.words import estimated

NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def _counted(evidence: Evidence, unit: str) -> pd.DataFrame:
    """Cache rows of the paper's models, when all were counted, else of all others."""
    return evidence.rows("cache", model=evidence.models("cache"), unit=unit)


def no_eviction(evidence: Evidence) -> Finding:
    """A retained key-value head holds every token: its bytes are the freed heads' complement at every length.

    At beta = 1 no head is retained; a few bytes that keep count of the position remain.
    """
    counted = _counted(evidence, "kv_group")
    largest = 0.0
    for (_, length), rows in groups(counted, ["model", "length"]):
        by_beta = rows.set_index("beta")
        if 0.0 not in by_beta.index or 1.0 not in by_beta.index:
            raise Missing(f"no cache of {length} tokens at beta 0 and 1")
        retained = 1 - by_beta["kv_heads_freed"] / by_beta["kv_heads_freed"].loc[1.0]
        deviation = (by_beta["kv_bytes"] / by_beta["kv_bytes"].loc[0.0] - retained).drop(1.0).abs()
        largest = max(largest, float(deviation.max()))
    return Finding(largest < ROUNDING, f"largest deviation {largest:.2g}", {"cache": counted.index})


def _growth(evidence: Evidence, unit: str) -> tuple[pd.Series, pd.DataFrame]:
    """Bytes that the cache gains from the shorter to the longer length, over the original's: (model, beta); and the
    rows.
    """
    counted = _counted(evidence, unit)
    bytes_at = counted.pivot_table(index=["model", "beta"], columns="length", values="total_bytes")
    if not set(CACHE_LENGTHS.values()) <= set(bytes_at) or 0.0 not in bytes_at.index.get_level_values("beta"):
        raise Missing("caches of two lengths and of the original are needed")
    gained = bytes_at[CACHE_LENGTHS["cs_60k"]] - bytes_at[CACHE_LENGTHS["cs_10k"]]
    over = over_original(gained)
    converted = over[over.index.get_level_values("beta") > 0].dropna()
    if converted.empty:
        raise Missing("no cache of a converted model")
    return converted, counted


def growth(evidence: Evidence) -> Finding:
    """Growth of the cache over that of the original, at the smallest beta, which frees least."""
    groups_of_heads, by_group = _growth(evidence, "kv_group")
    single_heads, by_head = _growth(evidence, "head")
    text = f"at most {groups_of_heads.max():.2f} of the original's growth (single heads: {single_heads.max():.2f})"
    return Finding(float(groups_of_heads.max()) < 1, text, {"cache": labels([by_group, by_head])})


def reduced(evidence: Evidence) -> Finding:
    """The cache of a converted model over the original's, at the beta and the length at which it is largest."""
    rows = {unit: _counted(evidence, unit) for unit in ("kv_group", "head")}
    of_groups, of_heads = (float(counted.loc[counted["beta"] > 0, "ratio"].max()) for counted in rows.values())
    text = f"at most {of_groups:.2f} of the original's (single heads: {of_heads:.2f})"
    return Finding(of_groups < 1, text, {"cache": labels(rows.values())})


def smaller(evidence: Evidence) -> Finding:
    """Mamba's peak and cache lie below attention's in both phases, once the length makes its cache the smaller one.

    Mamba's cache is constant and attention's is proportional to the length. So Mamba's is the larger at few tokens.
    """
    rows = evidence.rows("complexity")
    wide = rows.pivot_table(index=["phase", "quantity", "length"], columns="mixer", values="bytes")
    caches = wide.xs("prefill", level="phase").xs("cache_size", level="quantity")
    per_token = caches["attention"] / caches.index
    crossing = math.ceil((caches["mamba"] / per_token).iloc[0])
    lengths = wide.index.get_level_values("length")
    ratios = (wide["mamba"] / wide["attention"])[lengths > crossing]
    counted = f"counted per token, attention's cache is the smaller one below {crossing:,} tokens"
    if ratios.empty:
        raise Undecided(f"no measured length is beyond the crossing: {counted}")
    start = int(lengths[lengths > crossing].min())
    text = f"at most {ratios.max():.2f} of attention's at the measured lengths from {start:,} tokens on; {counted}"
    return Finding(float(ratios.max()) < 1, text, {"complexity": rows.index})


def operations(evidence: Evidence) -> Finding:
    """A Mamba block's operations over attention's, in each phase at every length of the paper's and beyond."""
    rows = evidence.rows("complexity", quantity="cache_size")
    counted = rows.pivot_table(index=["phase", "length"], columns="mixer", values="operations")
    ratios = counted["mamba"] / counted["attention"]
    parts = [f"{phase} {of.iloc[0]:.2f} to {of.iloc[-1]:.2f}" for phase, of in ratios.groupby("phase")]
    text = f"{', '.join(parts)} of attention's, from {rows['length'].min():,} to {rows['length'].max():,} tokens"
    if len(more := ratios[ratios >= 1].index.get_level_values("length")):
        text = f"{text}: not fewer at {more.max():,} tokens"
    long = ratios[ratios.index.get_level_values("length") >= min(CACHE_LENGTHS.values())]
    if long.empty:
        raise Missing("no operations at a length of the paper's")
    return Finding(bool((long < 1).all()), text, {"complexity": rows.index})


def similar(evidence: Evidence, models: Sequence[str], near: float) -> Finding:
    """The counted caches of RecurFormer at Table 2's beta and of PyramidInfer, over the original's, at both lengths;
    these fractions may differ by `near`.
    """
    (model,), lengths = models, list(CACHE_LENGTHS.values())
    where = {"model": model, "unit": "kv_group", "beta": BETAS[model]}
    caches = [evidence.rows("cache", **where, length=length) for length in lengths]
    others = [evidence.rows("pyramidinfer", model=model, length=length) for length in lengths]
    pairs = [[float(rows["ratio"].iloc[0]) for rows in both] for both in zip(caches, others, strict=True)]
    text = "; ".join(f"RecurFormer {one:.4f}, PyramidInfer {other:.4f}" for one, other in pairs)
    holds = max(abs(one - other) for one, other in pairs) <= near
    return Finding(holds, f"{label(model)}: {text}", {"cache": labels(caches), "pyramidinfer": labels(others)})


def equation_3(evidence: Evidence, models: Sequence[str]) -> Finding:
    """Counted state bytes at beta = 1 against equation 3 times the layers: Llama2-7B, whose heads fill its width."""
    (model,) = models
    rows = evidence.rows("cache", model=model, unit="kv_group", beta=1.0)
    row = rows.iloc[0]
    precision = dict(part.split(":") for part in row["state_dtype"].split())
    conv, recurrent = (EXPAND * LLAMA2_7B_WIDTH * size * LLAMA2_7B_LAYERS for size in (D_CONV, D_STATE))
    counted = [row[f"{state}_bytes"] / NUMBER_BYTES[precision[state]] for state in ("conv", "recurrent")]
    text = f"{counted[0]:,.0f} and {counted[1]:,.0f} numbers, the equation gives {conv:,} and {recurrent:,}"
    return Finding(counted == [conv, recurrent], text, {"cache": rows.index})


def _counted_groups(evidence: Evidence, models: list[str]) -> tuple[pd.Series, pd.DataFrame]:
    """Query heads for each key-value head of the models whose caches were counted, by the heads freed at beta = 1; and
    the rows.
    """
    rows = evidence.rows("cache", model=models, unit="kv_group", beta=1.0)
    return (rows["heads_replaced"] / rows["kv_heads_freed"]).groupby(rows["model"]).first(), rows


def query_groups(evidence: Evidence, models: Iterable[str]) -> tuple[dict[str, float], Rows]:
    """Query heads for each key-value head of every model, counted where its cache was, else from the record of the run
    that made its backbone; and the rows that were counted.
    """
    sizes, counted = {}, []
    for model in models:
        with suppress(Missing):
            groups, rows = _counted_groups(evidence, [model])
            sizes[model] = float(groups.iloc[0])
            counted.append(rows)
            continue
        records = map(record_of, evidence.rows("baseline", model=model)["file"].unique())
        runs = (run for record in filter(None, records) for _, run in ancestors(record))
        backbone: Mapping[str, Any] = next((run["settings"] for run in runs if run["stage"] == "backbone"), {})
        if not backbone.get("heads"):
            raise Missing(f"how many query heads of {label(model)} share a key-value head is not known")
        sizes[model] = int(backbone["heads"]) / int(backbone.get("kv_heads") or backbone["heads"])
    return sizes, {"cache": labels(counted)} if counted else {}


def attention_kinds(evidence: Evidence) -> Finding:
    """Replaced query heads for each freed key-value head at beta = 1."""
    group, rows = _counted_groups(evidence, list(BACKBONE_LABELS))
    if set(group.index) != set(BACKBONE_LABELS):
        raise Missing("caches of all three backbones are needed")
    holds = bool(group["llama2-7b"] == 1 and group.drop("llama2-7b").gt(1).all())
    text = ", ".join(f"{label(str(model))} {size:g} to 1" for model, size in group.items())
    return Finding(holds, text, {"cache": rows.index})


def longer_inputs(evidence: Evidence) -> Finding:
    """Measured l_m at Table 2's beta above that of the original. A model of which nothing longer was tried than what
    fitted says nothing. The claim is about all models: it is then open, unless another one fails.
    """
    gains, looked_at = {}, []
    for model, beta in BETAS.items():
        measured = evidence.rows("memory", model=model, protocol="one_shot", source="measured")
        lengths = longest_values(measured)
        lengths = lengths[(lengths["setting"] == "one_shot") & lengths["beta"].isin([0.0, beta])].sort_values("beta")
        if len(lengths) < 2:
            raise Missing(f"no measured l_m of {label(model)} at beta 0 and {beta}")
        gain, open_ends = float(lengths["ours"].iloc[1] / lengths["ours"].iloc[0]), lengths["status"] == AT_LEAST
        # the longest that was tried bounds the gain on one side
        if not open_ends.any() or (not open_ends.iloc[0] and gain > 1) or (not open_ends.iloc[1] and gain <= 1):
            gains[model] = gain
            looked_at.append(measured)
    others = ", ".join(label(model) for model in BETAS if model not in gains)
    if not gains:
        raise Undecided(f"l_m of {others} is known to be at least that long only: nothing longer was tried")
    text = f"at least {min(gains.values()):.2f} times ({', '.join(map(label, gains))})"
    holds = min(gains.values()) > 1
    still_open = f"nothing longer than what fitted was tried for {others}" if others and holds else ""
    return Finding(holds, text, {"memory": labels(looked_at)}, still_open=still_open)


PHASES = {"prefill": "prefill", "decode": "decoding"}
LEAST_ROUNDS = 3
"""Of a benchmark: fewer have no spread."""


def _timed(evidence: Evidence, **where: object) -> tuple[pd.DataFrame, str]:
    """Benchmark rows of converted models, on a GPU where one was timed; and what the text says of the device."""
    rows = evidence.rows("bench", **where)
    on_gpu = rows["device"] != "cpu"
    rows = rows[(rows["beta"] > 0) & (on_gpu if on_gpu.any() else True)]
    if rows["ratio"].isna().any() or (rows["rounds"] < LEAST_ROUNDS).any():
        raise Undecided(f"a benchmark of fewer than {LEAST_ROUNDS} rounds has no spread")
    return rows, "" if on_gpu.any() else "on a processor: "


def faster(evidence: Evidence) -> Finding:
    """Speed over the original's at batch 1, after the longest context that every model read in both phases."""
    rows, where = _timed(evidence, topic=list(PHASES), batch=1)
    phases = [of for _, of in groups(rows, ["model", "topic"])]
    lengths = set.intersection(*(set(of["tokens"]) for of in phases)) if phases else set()
    if not lengths or len(phases) < 2 * rows["model"].nunique():
        raise Missing("no prefill and decoding of every model after a context of one length")
    longest, shortest = (rows[rows["tokens"] == length] for length in (max(lengths), min(lengths)))
    slowest = longest.sort_values("ratio").drop_duplicates("topic").set_index("topic").loc[list(PHASES)].reset_index()
    holds = bool((longest["ratio"] > 1).all())
    decided = bool((longest["ratio_low"] > 1).all() if holds else (longest["ratio_high"] < 1).any())
    text = ", ".join(
        f"{PHASES[row.topic]} {estimated(row.ratio, row.ratio_low, row.ratio_high, 2)}" for row in records(slowest)
    )
    models = ", ".join(map(label, longest["model"].unique()))
    least = f"the slower of both {shortest['ratio'].min():.2f} after {min(lengths):,.0f}"
    return Finding(
        holds, f"{where}{text} times as fast at {max(lengths):,.0f} tokens ({models}), {least}",
        {"bench": rows.index}, still_open="" if decided else "the rounds of the benchmark do not decide it",
    )  # fmt: skip


def small_batches(evidence: Evidence) -> Finding:
    """Speed of decoding over the original's, of one sequence and of the largest batch, after the shortest context."""
    rows, where = _timed(evidence, topic="decode")
    of_one, of_many = [], []
    for _, of in groups(rows, ["model", "beta"]):
        batches = of[of["tokens"] == of["tokens"].min()].sort_values("batch")
        if batches["batch"].nunique() > 1:
            of_one.append(batches.iloc[0])
            of_many.append(batches.iloc[-1])
    if not of_one:
        raise Missing("decoding was timed at one batch size only")
    one, many = (pd.DataFrame(rows).reset_index(names="row") for rows in (of_one, of_many))
    holds = bool(((one["ratio"] < 1) & (one["ratio"] < many["ratio"])).all())
    supported = (one["ratio_high"] < 1) & (one["ratio_high"] < many["ratio_low"])
    opposed = (one["ratio_low"] > 1) | (one["ratio_low"] > many["ratio_high"])
    decided = bool(supported.all() if holds else opposed.any())
    pairs = zip(records(one), records(many), strict=True)
    text = ", ".join(
        f"{estimated(a.ratio, a.ratio_low, a.ratio_high, 2)} times as fast at batch {a.batch:.0f},"
        f" {estimated(b.ratio, b.ratio_low, b.ratio_high, 2)} at batch {b.batch:.0f} after {a.tokens:,.0f} tokens"
        f" ({label(a.model)})"
        for a, b in pairs
    )
    still_open = "" if decided else "the rounds of the benchmark do not decide it"
    return Finding(holds, f"{where}decoding {text}", {"bench": [*one["row"], *many["row"]]}, still_open=still_open)
