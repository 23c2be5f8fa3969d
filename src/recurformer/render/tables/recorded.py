"""What cards measured and recordings keep: columns of their own in Tables 2 and 4, each named by its card."""

from collections.abc import Mapping

import pandas as pd

from recurformer.render.measurements import require
from recurformer.render.tables.baseline import baseline_scores, without_weak
from recurformer.render.tables.comparison import HEADINGS
from recurformer.render.tables.measured import (
    SETTINGS,
    Key,
    Value,
    cache_values,
    longest_values,
    quality_values,
)

Recorded = Mapping[str, Mapping[str, pd.DataFrame]]
"""Name of a card -> kind of measurement -> rows."""
KINDS = ("cache_peak", "hashhop", "baseline", "memory")
"""What Tables 2 and 4 take from a recording."""


def _values(frames: Mapping[str, pd.DataFrame]) -> dict[Key, Value]:
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
        for (row, quantity, setting), value in _values(frames).items():
            usual = setting == SETTINGS[quantity][0]
            values[row, quantity, card if usual else f"{card}, {HEADINGS.get(setting, setting)}"] = value
    return values


def recorded_frames(recorded: Recorded) -> list[pd.DataFrame]:
    """All measurements, whatever their card and kind."""
    return [frame for frames in recorded.values() for frame in frames.values()]


def recorded_notes(recorded: Recorded) -> list[str]:
    """Where the columns of each card come from."""
    return [
        f"{card}: recorded on this card by another study. Its caches are those of models with random weights in "
        "bfloat16, its h_gq that of models which that study trained."
        for card in recorded
    ]
