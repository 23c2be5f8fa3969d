"""Tables 2 and 4: longest input, generation quality and cache size.

Table 2 goes by optimisation method, Table 4 by the share of replaced heads.
"""

import math
from collections.abc import Callable

import pandas as pd

from recurformer.paper import BACKBONE_LABELS, CELLS, TABLE2_BETAS, label
from recurformer.paper.sizes import CACHE_LENGTHS, PYRAMIDINFER_MINIMUM, PYRAMIDINFER_RATIO
from recurformer.render.measurements import groups, records, require
from recurformer.render.tables.comparison import PYRAMIDINFER, lines_of, long_frame, notes
from recurformer.render.tables.measured import (
    SETTINGS,
    Key,
    Recorded,
    Row,
    Value,
    baseline_scores,
    cache_values,
    longest_values,
    quality_values,
    recorded_values,
    without_weak,
)
from recurformer.render.tables.table import Table
from recurformer.render.words import Verdicts


def _pyramidinfer_values(pyramidinfer: pd.DataFrame) -> dict[Key, Value]:
    """Caches of PyramidInfer over those of the original; rows without a source were computed, not counted."""
    require(pyramidinfer, "pyramidinfer")
    return {
        (Row(row.model, PYRAMIDINFER, None), quantity, SETTINGS[quantity][0]): Value(
            float(row.ratio), source=getattr(row, "source", "computed"), runs=getattr(row, "run", "")
        )
        for quantity, length in CACHE_LENGTHS.items()
        for row in records(pyramidinfer[pyramidinfer["length"] == length])
    }


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
        values |= _pyramidinfer_values(pyramidinfer)
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
        said.append(f"{others}: not in the paper, shown at the fractions that its Table 2 uses.")
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
    title = "Longest input, generation quality and cache size at every fraction β of replaced heads"
    return Table("table4", title, long, lines, said)
