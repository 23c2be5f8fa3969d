"""Ours, the paper's and the difference: the layout that Tables 2 and 4 share."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from itertools import product
from typing import Any

import pandas as pd

from recurformer.paper import BACKBONE_LABELS, PrintedCell, label
from recurformer.render.measurements import groups, records
from recurformer.render.tables.measured import NEEDED, QUANTITIES, SETTINGS, Key, Row, Value, settings_of
from recurformer.render.words import LEGEND, MARKS, NOT_RUN, NOTHING, Verdicts, beside, estimated, number

DECIMALS = {"l_m": 0, "h_gq": 3, "cs_10k": 4, "cs_60k": 4}
REASONS = {
    "l_m": "not measured nor computed in this study",
    "h_gq": "no HashHop run in this study: it needs the published weights and a GPU (config/paper.yaml)",
    "cs_10k": "caches of 10,240 tokens were not counted in this study",
    "cs_60k": "caches of 61,440 tokens were not counted in this study",
}
ORIGINS = {"model": " by model", "computed": " computed", "at least": " or more"}
"""Status of a value -> words beside it: it was not measured, or not to its end."""
PYRAMIDINFER = "PyramidInfer"


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
    learned = ", ".join(f"{texts[model]} ({label(model)})" for model, score in scores.items() if score >= NEEDED)
    passed = [f"Without conversion h_gq is {learned}; a comparison needs {NEEDED:g}."] if learned else []
    return passed + [
        f"h_gq of {label(model)}: not-run: the unconverted model reaches only {texts[model]} of the {NEEDED:g} "
        "that a comparison needs."
        for model, score in scores.items()
        if score < NEEDED
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
        "measured on a GPU. CSV: in chunks, which the paper did not do (chunked), and where the cache alone fills the "
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
    withheld = (long["quantity"] == "h_gq") & (long["model"].map(scores) < NEEDED)
    missing = long[(long["status"] == NOT_RUN) & long["compared"] & ~withheld]
    for quantity, rows in missing[missing["method"] != PYRAMIDINFER].groupby("quantity", sort=False):
        models = ", ".join(label(model) for model in BACKBONE_LABELS if model in set(rows["model"]))
        found.append(f"{quantity} of {models}: not-run: {REASONS[str(quantity)]}.")
    return found
