"""Table 2: longest input, generation quality and cache size by optimisation method."""

import pandas as pd

from recurformer.paper import BACKBONE_LABELS, label
from recurformer.paper import table2 as paper
from recurformer.paper.sizes import CACHE_LENGTHS, PYRAMIDINFER_MINIMUM, PYRAMIDINFER_RATIO
from recurformer.render.measurements import groups, models_in_order, records, require
from recurformer.render.tables.baseline import baseline_scores, without_weak
from recurformer.render.tables.comparison import PYRAMIDINFER, display, long_frame, notes, printed_by_row
from recurformer.render.tables.measured import SETTINGS, Key, Row, Value, measured_values, replacing
from recurformer.render.tables.recorded import Recorded, recorded_frames, recorded_notes, recorded_values
from recurformer.render.tables.table import Table
from recurformer.render.verdicts import Verdicts


def _rows(models: list[str], values: dict[Key, Value]) -> list[Row]:
    """The paper's lines, then every other model: its original and the shares that the paper's Table 2 uses."""
    printed = list(dict.fromkeys(row for row, _ in printed_by_row(paper.CELLS)))
    measured = {row for row, *_ in values}
    rows = []
    for model in [*BACKBONE_LABELS, *(model for model in models if model not in BACKBONE_LABELS)]:
        shares = [replacing(model, beta) for beta in sorted({0.0, *paper.BETAS.values()})]
        rows += [row for row in printed if row.model == model] or [row for row in shares if row in measured]
        pyramid = Row(model, PYRAMIDINFER, None)
        rows += [pyramid] if pyramid in measured and pyramid not in rows else []
    return rows


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


def table2(
    cache: pd.DataFrame,
    hashhop: pd.DataFrame,
    baseline: pd.DataFrame,
    memory: pd.DataFrame,
    pyramidinfer: pd.DataFrame,
    verdicts: Verdicts,
    recorded: Recorded | None = None,
) -> Table:
    """Table 2: every line of the paper's, then the study's other models, each as ours, the paper's and the difference.

    Args:
        cache: model, unit, beta, length, ratio.
        hashhop: model, beta, seed, variant, sample, correct, hops.
        baseline: the same columns, of each model before conversion; h_gq of a model that scores too little there is
            "not-run".
        memory: model, beta, protocol, l_m, memory_bytes, source.
        pyramidinfer: model, length, ratio.
        verdicts: of the paper's cells.
        recorded: of cards.

    Raises:
        ValueError: missing columns, no rows, no cache of 10,240 or 61,440 tokens, two caches for one cell, or a model
            with h_gq that has none before conversion.
    """
    measured = measured_values(cache, hashhop, memory)
    scores = baseline_scores(baseline, measured)
    cards = recorded or {}
    values = without_weak(measured, scores) | recorded_values(cards)
    require(pyramidinfer, "pyramidinfer")
    for quantity, length in CACHE_LENGTHS.items():
        for row in records(pyramidinfer[pyramidinfer["length"] == length]):
            values[Row(row.model, PYRAMIDINFER, None), quantity, SETTINGS[quantity][0]] = Value(
                float(row.ratio), source="computed", runs=getattr(row, "run", "")
            )
    models = models_in_order(cache, hashhop, memory, pyramidinfer, *recorded_frames(cards))
    long = long_frame(_rows(models, values), values, printed_by_row(paper.CELLS), verdicts)
    others = ", ".join(label(model) for model in models if model not in BACKBONE_LABELS)
    return Table(
        "table2",
        "Longest input, generation quality and cache size by optimisation method: ours, the paper's, and the "
        "difference",
        _wide(long),
        display(long),
        (
            *notes(long, cache, memory, scores),
            *recorded_notes(cards),
            f"PyramidInfer: caches computed from the paper's setting ({PYRAMIDINFER_RATIO:g} of the tokens kept from "
            f"layer to layer, {PYRAMIDINFER_MINIMUM} at least), which is no measurement; all of it: not-run: the "
            "method runs in small models only, in the ablations.",
            *([f"{others}: not in the paper, shown at the shares that its Table 2 uses."] if others else []),
        ),
    )
