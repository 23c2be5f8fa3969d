"""Table 4: longest input, generation quality and cache size at every share of replaced heads."""

import pandas as pd

from recurformer.paper import table4 as paper
from recurformer.render.measurements import models_in_order
from recurformer.render.tables.baseline import baseline_scores, without_weak
from recurformer.render.tables.comparison import display, long_frame, notes, printed_by_row
from recurformer.render.tables.measured import measured_values
from recurformer.render.tables.recorded import Recorded, recorded_frames, recorded_notes, recorded_values
from recurformer.render.tables.table import Table
from recurformer.render.verdicts import Verdicts


def table4(
    cache: pd.DataFrame,
    hashhop: pd.DataFrame,
    baseline: pd.DataFrame,
    memory: pd.DataFrame,
    verdicts: Verdicts,
    recorded: Recorded | None = None,
) -> Table:
    """Table 4: every model at every beta, the paper's and the study's; the CSV file is in long format.

    Args:
        cache: model, unit, beta, length, ratio.
        hashhop: model, beta, seed, variant, sample, correct, hops.
        baseline: the same columns, of each model before conversion; h_gq of a model that scores too little there is
            "not-run".
        memory: model, beta, protocol, l_m, memory_bytes, source.
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
    printed = printed_by_row(paper.CELLS)
    known = {row for row, _ in printed} | {row for row, _, _ in values}
    models = list(dict.fromkeys([*paper.PRINTED, *models_in_order(cache, hashhop, memory, *recorded_frames(cards))]))
    rows = [
        row
        for model in models
        for row in sorted((row for row in known if row.model == model), key=lambda row: row.beta or 0.0)
    ]
    long = long_frame(rows, values, printed, verdicts)
    return Table(
        "table4",
        "Longest input, generation quality and cache size at every share β of replaced heads",
        long,
        display(long).drop(columns=[("", "Method")]),
        (*notes(long, cache, memory, scores), *recorded_notes(cards)),
    )
