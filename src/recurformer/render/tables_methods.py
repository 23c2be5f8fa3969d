"""Tables 2 and 4: longest input, generation quality and cache size, ours beside the paper's.

Table 2 goes by optimisation method, Table 4 by the share of replaced heads.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple
from itertools import product
from typing import Any

import pandas as pd

from recurformer.paper import (
    BACKBONE_LABELS,
    CELLS,
    PYRAMIDINFER_MINIMUM,
    PYRAMIDINFER_RATIO,
    TABLE2_BETAS,
    PrintedCell,
    label,
)
from recurformer.render.table import Table
from recurformer.results.cells import (
    AT_LEAST,
    PYRAMIDINFER,
    QUANTITIES,
    SETTINGS,
    Key,
    Row,
    Value,
    baseline_scores,
    cache_values,
    longest_values,
    pyramidinfer_values,
    quality_values,
    settings_of,
    without_weak,
)
from recurformer.results.frames import groups, records, require
from recurformer.results.learned import LEARNED
from recurformer.results.words import LEGEND, MARKS, NOT_RUN, NOTHING, Verdicts, beside, estimated, number

DECIMALS = {"l_m": 0, "h_gq": 3, "cs_10k": 4, "cs_60k": 4}
REASONS = {
    "l_m": "not measured nor computed in this study",
    "h_gq": "no HashHop run in this study: it needs the published weights and a GPU (config/paper.yaml)",
    "cs_10k": "caches of 10,240 tokens were not counted in this study",
    "cs_60k": "caches of 61,440 tokens were not counted in this study",
}
ORIGINS = {"model": " by model", "computed": " computed", AT_LEAST: " or more"}
"""Status of a value -> words beside it: it was not measured, or not to its end."""
HEADINGS = {"paper": "appendix layout", "official": "official layout", "head": "unit head"}
"""Settings that a recording of a card names by other words."""
GPU_KINDS = ("cache_peak", "hashhop", "baseline", "memory")
"""What Tables 2 and 4 take from a recording."""
Recorded = Mapping[str, Mapping[str, pd.DataFrame]]
"""Name of a card -> kind of measurement -> rows that a recording keeps of it."""


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


def long_frame(
    rows: Iterable[Row],
    values: Mapping[Key, Value],
    printed: Mapping[tuple[Row, str], PrintedCell],
    verdicts: Verdicts,
) -> pd.DataFrame:
    """One row for each line, quantity and setting.

    Returns:
        model, method, beta, quantity, setting, compared (bool: this setting stands beside the paper's value), ours,
        low, high, samples, paper, printed (text), difference, status (where ours comes from: "counted", "measured",
        measured to be "at least" that, "computed" by a formula or by a "model"; "not-run" where the paper has a value
        and we have none, and where ours is withheld for a weak baseline; else ""), claim (id in the ledger), verdict
        (its verdict there), runs (ids of the runs behind ours).
    """
    entries = []
    for row, quantity in product(rows, QUANTITIES):
        cell = printed.get((row, quantity))
        paper = (cell.value, cell.printed) if cell else (math.nan, "")
        claim = (cell.id, verdicts.get(cell.id, "")) if cell else ("", "")
        for place, setting in enumerate(settings_of(values, row, quantity)):
            value = values.get((row, quantity, setting), Value(math.nan, source=""))
            status = value.source or (NOT_RUN if cell else "")
            ours = (value.ours, value.low, value.high, value.samples)
            entries.append((*astuple(row), quantity, setting, place == 0, *ours, *paper, status, *claim, value.runs))
    frame = pd.DataFrame(
        entries,
        columns=[
            "model", "method", "beta", "quantity", "setting", "compared", "ours", "low", "high", "samples", "paper",
            "printed", "status", "claim", "verdict", "runs",
        ],
    ).astype({"beta": float, "samples": "Int64"})  # fmt: skip
    frame.insert(list(frame).index("status"), "difference", frame["ours"] - frame["paper"])
    return frame


def _ours_text(entry: Any) -> str:
    if entry.status in {"", NOT_RUN}:
        return entry.status or NOTHING
    text = estimated(entry.ours, entry.low, entry.high, DECIMALS[entry.quantity])
    return text + ORIGINS.get(entry.status, "")


def lines_of(long: pd.DataFrame) -> list[dict[str, str]]:
    """The lines as text: of every quantity ours beside the paper's, and what recordings of cards have of it."""
    known = long[~long["status"].isin(["", NOT_RUN])]
    cards = {
        quantity: [name for name in known.loc[known["quantity"] == quantity, "setting"].unique() if name not in usual]
        for quantity, usual in SETTINGS.items()
    }
    lines = []
    for (model, method, beta), rows in groups(long, ["model", "method", "beta"]):
        line = {"Model": label(model), "Method": method, "β": number(beta, 2)}
        for quantity in QUANTITIES:
            entries = {entry.setting: entry for entry in records(rows[rows["quantity"] == quantity])}
            first = next(entry for entry in entries.values() if entry.compared)
            line[quantity] = beside(_ours_text(first), first.printed or NOTHING, MARKS.get(first.verdict, NOTHING))
            for card in cards[quantity]:
                line[f"{quantity}, {card}"] = _ours_text(entries[card]) if card in entries else NOTHING
        lines.append(line)
    return lines


def _h_gq_notes(scores: Mapping[str, float]) -> list[str]:
    """h_gq before conversion: of the models that have learned the task, and of each whose h_gq is withheld."""
    texts = {model: number(score, DECIMALS["h_gq"]) for model, score in scores.items()}
    learned = ", ".join(f"{texts[model]} ({label(model)})" for model, score in scores.items() if score >= LEARNED)
    passed = [f"Without conversion h_gq is {learned}; a comparison needs {LEARNED:g}."] if learned else []
    return passed + [
        f"h_gq of {label(model)}: not-run: the unconverted model reaches only {texts[model]} of the {LEARNED:g} "
        "that a comparison needs."
        for model, score in scores.items()
        if score < LEARNED
    ]


def _memory_model_note(memory: pd.DataFrame) -> list[str]:
    """How far the memory model is from what was measured."""
    if "error" not in memory or memory["error"].isna().all():
        return []
    low, high = (number(100 * error, 1, signed=True) for error in memory["error"].agg(["min", "max"]))
    return [f"The memory model's error where l_m was measured: {low} % to {high} %."]


def notes(long: pd.DataFrame, cache: pd.DataFrame, memory: pd.DataFrame, scores: Mapping[str, float]) -> list[str]:
    """How the values came about, and why those are missing that are; `scores`: h_gq before conversion by model."""
    card = ", ".join(f"{size / 2**30:.4g}" for size in sorted(memory["memory_bytes"].unique()))
    found = [
        "A cell: ours, the paper's value in parentheses, the verdict. The CSV file also has the differences and the "
        "values under other settings, each named below.",
        f"l_m: longest prompt in one forward pass in {card} GiB; “by model”: computed by the memory model, not "
        "measured on a card. CSV: in chunks, which the paper did not do (chunked), and where the cache alone fills the "
        "memory that the weights leave (limit).",
        "h_gq: leading hashes reproduced exactly over h_p, mean over the samples of all seeds with its 95 % interval. "
        "The public generator makes the prompts (official): several full chains. CSV: the layout of the paper's "
        "appendix (paper), one chain among lone pairs.",
        "cs_10k, cs_60k: bytes in the cache objects at 10,240 and 61,440 tokens over those of the original model. "
        "Heads are replaced by whole query groups (kv_group). CSV: one by one (head), which frees a key-value head "
        "only when all its query heads are replaced.",
        *_memory_model_note(memory),
        *_h_gq_notes(scores),
        LEGEND,
    ]
    if "ranking" in cache and (random := cache.loc[cache["ranking"] == "random", "model"].unique()).size:
        found.append(
            f"Heads of {', '.join(map(label, random))} ranked at random (shapes without weights): this changes "
            "nothing under unit kv_group."
        )
    withheld = (long["quantity"] == "h_gq") & (long["model"].map(scores) < LEARNED)
    missing = long[(long["status"] == NOT_RUN) & long["compared"] & ~withheld]
    for quantity, rows in missing[missing["method"] != PYRAMIDINFER].groupby("quantity", sort=False):
        models = ", ".join(label(model) for model in BACKBONE_LABELS if model in set(rows["model"]))
        found.append(f"{quantity} of {models}: not-run: {REASONS[str(quantity)]}.")
    return found


def _wide(long: pd.DataFrame) -> pd.DataFrame:
    """One row a line, for the CSV file: <quantity>_ours, _paper, _difference, _status, _claim, _verdict, _runs, and
    _ours_<other setting>.
    """
    lines = []
    for (model, method, beta), rows in groups(long, ["model", "method", "beta"]):
        line: dict[str, object] = {"model": model, "method": method, "beta": beta}
        for entry in records(rows):
            if not entry.compared:
                line[f"{entry.quantity}_ours_{entry.setting}"] = entry.ours
                continue
            for part in ("ours", "paper", "difference", "status", "claim", "verdict", "runs"):
                line[f"{entry.quantity}_{part}"] = getattr(entry, part)
            if entry.quantity == "h_gq":
                line.update({f"h_gq_{part}": getattr(entry, part) for part in ("low", "high", "samples", "setting")})
        lines.append(line)
    return pd.DataFrame(lines)


def _build(
    table: int,
    shown: Callable[[Row], bool],
    verdicts: Verdicts,
    recorded: Recorded,
    cache: pd.DataFrame,
    hashhop: pd.DataFrame,
    baseline: pd.DataFrame,
    memory: pd.DataFrame,
    pyramidinfer: pd.DataFrame | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """The long frame of table number `table`, and its notes; `shown` says which lines it has beside the paper's."""
    for kind, frame in (("cache", cache), ("hashhop", hashhop), ("memory", memory)):
        require(frame, kind)
    measured = {**cache_values(cache), **quality_values(hashhop), **longest_values(memory)}
    scores = baseline_scores(baseline, measured)
    values = without_weak(measured, scores) | recorded_values(recorded)
    if pyramidinfer is not None:
        values |= pyramidinfer_values(pyramidinfer)
    printed = {(Row(cell.model, cell.method, cell.beta), cell.quantity): cell for cell in CELLS if cell.table == table}
    lines = {row for row, _ in printed} | {row for row, *_ in values if shown(row)}
    models = list(dict.fromkeys([*BACKBONE_LABELS, *(row.model for row, *_ in values)]))
    rows = sorted(lines, key=lambda row: (models.index(row.model), math.inf if row.beta is None else row.beta))
    long = long_frame(rows, values, printed, verdicts)
    cards = [
        f"{card}: recorded on this GPU by another study. Its caches are those of models with random weights in "
        "bfloat16, its h_gq that of models which that study trained."
        for card in recorded
    ]
    return long, [*notes(long, cache, memory, scores), *cards]


def table2(
    cache: pd.DataFrame,
    hashhop: pd.DataFrame,
    baseline: pd.DataFrame,
    memory: pd.DataFrame,
    pyramidinfer: pd.DataFrame,
    verdicts: Verdicts,
    recorded: Recorded,
) -> Table:
    """Table 2: every line of the paper's, then the study's other models at the shares of heads that it uses.

    `baseline` is HashHop before conversion: h_gq of a model that scores too little there is "not-run".

    Raises:
        ValueError: no cache of 10,240 or 61,440 tokens, two caches for one cell, or a model with h_gq that has none
            before conversion.
    """
    shares = {0.0, *TABLE2_BETAS.values()}

    def shown(row: Row) -> bool:
        return row.beta is None or (row.model not in BACKBONE_LABELS and row.beta in shares)

    long, said = _build(2, shown, verdicts, recorded, cache, hashhop, baseline, memory, pyramidinfer)
    said.append(
        "PyramidInfer: keys and values that its cache keeps of a random prompt in the paper's setting "
        f"({PYRAMIDINFER_RATIO:g} of the tokens kept from layer to layer, {PYRAMIDINFER_MINIMUM} at least). The rest: "
        "not-run: the method runs in small models only, in the ablations."
    )
    if others := ", ".join(label(model) for model in long["model"].unique() if model not in BACKBONE_LABELS):
        said.append(f"{others}: not in the paper, shown at the shares that its Table 2 uses.")
    title = (
        "Longest input, generation quality and cache size by optimisation method: ours, the paper's, and the difference"
    )
    return Table("table2", title, _wide(long), lines_of(long), said)


def table4(
    cache: pd.DataFrame,
    hashhop: pd.DataFrame,
    baseline: pd.DataFrame,
    memory: pd.DataFrame,
    verdicts: Verdicts,
    recorded: Recorded,
) -> Table:
    """Table 4: every model at every beta, the paper's and the study's; the CSV file is in long format.

    Arguments and errors are those of `table2`.
    """
    long, said = _build(4, lambda _: True, verdicts, recorded, cache, hashhop, baseline, memory)
    lines = [{heading: text for heading, text in line.items() if heading != "Method"} for line in lines_of(long)]
    title = "Longest input, generation quality and cache size at every share β of replaced heads"
    return Table("table4", title, long, lines, said)
