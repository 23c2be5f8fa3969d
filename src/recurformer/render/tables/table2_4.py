"""Tables 2 and 4: longest input, generation quality and cache size.

Table 2 goes by optimisation method, Table 4 by the share of replaced heads.
"""

from collections.abc import Callable, Mapping

import pandas as pd

from recurformer.paper import BACKBONE_LABELS, CELLS, TABLE2_BETAS, label
from recurformer.paper.sizes import CACHE_LENGTHS, PYRAMIDINFER_MINIMUM, PYRAMIDINFER_RATIO
from recurformer.render.measurements import groups, models_in_order, records, require
from recurformer.render.tables.comparison import PYRAMIDINFER, display, long_frame, notes
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
from recurformer.render.verdicts import Verdicts


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
    frames: Mapping[str, pd.DataFrame],
    verdicts: Verdicts,
    recorded: Recorded | None,
    shown: Callable[[Row], bool],
) -> tuple[pd.DataFrame, list[str], list[str]]:
    """The long frame of one of the tables, its notes and its models; `shown`: which lines it has beside the paper's."""
    cache, hashhop, memory = (require(frames[kind], kind) for kind in ("cache", "hashhop", "memory"))
    measured = {**cache_values(cache), **quality_values(hashhop), **longest_values(memory)}
    scores = baseline_scores(frames["baseline"], measured)
    cards = recorded or {}
    values = without_weak(measured, scores) | recorded_values(cards)
    if "pyramidinfer" in frames:
        values |= _pyramidinfer_values(frames["pyramidinfer"])
    printed = {(Row(cell.model, cell.method, cell.beta), cell.quantity): cell for cell in CELLS if cell.table == table}
    in_paper = {row for row, _ in printed}
    known = in_paper | {row for row, *_ in values if shown(row)}
    compared = [frames[kind] for kind in ("cache", "hashhop", "memory", "pyramidinfer") if kind in frames]
    on_cards = [frame for kinds in cards.values() for frame in kinds.values()]
    models = list(dict.fromkeys([*BACKBONE_LABELS, *models_in_order(*compared, *on_cards)]))
    rows = sorted(known, key=lambda row: (models.index(row.model), float("inf") if row.beta is None else row.beta))
    long = long_frame(rows, values, printed, verdicts)
    return long, [*notes(long, cache, memory, scores), *map(_card_note, cards)], models


def _card_note(card: str) -> str:
    return (
        f"{card}: recorded on this card by another study. Its caches are those of models with random weights in "
        "bfloat16, its h_gq that of models which that study trained."
    )


def table2(
    cache: pd.DataFrame,
    hashhop: pd.DataFrame,
    baseline: pd.DataFrame,
    memory: pd.DataFrame,
    pyramidinfer: pd.DataFrame,
    verdicts: Verdicts,
    recorded: Recorded | None = None,
) -> Table:
    """Table 2: every line of the paper's, then the study's other models at the shares of heads that it uses.

    `baseline` is HashHop before conversion: h_gq of a model that scores too little there is "not-run".

    Raises:
        ValueError: no cache of 10,240 or 61,440 tokens, two caches for one cell, or a model with h_gq that has none
            before conversion.
    """
    frames = {
        "cache": cache, "hashhop": hashhop, "baseline": baseline, "memory": memory, "pyramidinfer": pyramidinfer,
    }  # fmt: skip
    shares = {0.0, *TABLE2_BETAS.values()}

    def shown(row: Row) -> bool:
        return row.beta is None or (row.model not in BACKBONE_LABELS and row.beta in shares)

    long, said, models = _build(2, frames, verdicts, recorded, shown)
    said.append(
        "PyramidInfer: keys and values that its cache keeps of a random prompt in the paper's setting "
        f"({PYRAMIDINFER_RATIO:g} of the tokens kept from layer to layer, {PYRAMIDINFER_MINIMUM} at least). The rest: "
        "not-run: the method runs in small models only, in the ablations."
    )
    if others := ", ".join(label(model) for model in models if model not in BACKBONE_LABELS):
        said.append(f"{others}: not in the paper, shown at the shares that its Table 2 uses.")
    title = (
        "Longest input, generation quality and cache size by optimisation method: ours, the paper's, and the difference"
    )
    return Table("table2", title, _wide(long), display(long), tuple(said))


def table4(
    cache: pd.DataFrame,
    hashhop: pd.DataFrame,
    baseline: pd.DataFrame,
    memory: pd.DataFrame,
    verdicts: Verdicts,
    recorded: Recorded | None = None,
) -> Table:
    """Table 4: every model at every beta, the paper's and the study's; the CSV file is in long format.

    Arguments and errors are those of `table2`.
    """
    frames = {"cache": cache, "hashhop": hashhop, "baseline": baseline, "memory": memory}
    long, said, _ = _build(4, frames, verdicts, recorded, lambda _: True)
    title = "Longest input, generation quality and cache size at every share β of replaced heads"
    return Table("table4", title, long, display(long).drop(columns=[("", "Method")]), tuple(said))
