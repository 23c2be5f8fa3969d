"""One printed entry of a table, with its place."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PrintedCell:
    """One entry of one of the paper's tables.

    Attributes:
        table: number of the table.
        row: row heading as printed.
        column: column heading as printed, in plain characters.
        printed: the entry as printed, digits kept.
        quantity: what it measures, under one name in all tables: "l_m" (tokens), "h_gq" (ratio), "cs_10k" and "cs_60k"
            (share of the original's cache at 10,240 and 61,440 tokens), "perplexity", "cache_peak" and "cache_size"
            (orders of growth).
        model: the backbone's name in the measurements, "" in Table 1.
        method: "Original Model", "RecurFormer" or "PyramidInfer"; in Table 1 the mixer ("attention", "mamba"); else "".
        beta: share of heads replaced; None where there is none (PyramidInfer, Table 1).
        part: the phase in Table 1 ("prefill", "generation"), else "".
    """

    table: int
    row: str
    column: str
    printed: str
    quantity: str
    model: str = ""
    method: str = ""
    beta: float | None = None
    part: str = ""

    @property
    def value(self) -> float:
        """The entry as a number; NaN for an order of growth."""
        return math.nan if self.printed.startswith("O(") else float(self.printed.replace(",", ""))
