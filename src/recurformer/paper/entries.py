"""What a printed thing is: an entry of a table, or a number of the text."""

import math
from dataclasses import dataclass

BACKBONE_LABELS = {
    "qwen2-0.5b": "Qwen2-0.5B",
    "llama2-7b": "Llama2-7B",
    "qwen2-7b": "Qwen2-7B",
}
"""The paper's three backbones in the order of its tables: name in the measurements -> name in print."""
OTHER_LABELS = {
    "smollm2-135m": "SmolLM2-135M",
    "hashhop-llama": "HashHop-Llama",
    "hashhop-qwen2": "HashHop-Qwen2",
}
"""Models of the suite's own studies; any other model is shown by its name."""
KINDS = ("analytic", "measured", "trained", "trend", "reviewer")
"""What it takes to check a printed thing: counting, running a pretrained model, training one; or a tendency. The last:
no printed thing but what the reviewers asked."""
QUANTITY_KINDS = {
    "cache_peak": "analytic", "cache_size": "analytic", "cs_10k": "analytic", "cs_60k": "analytic",
    "l_m": "measured", "h_gq": "trained", "perplexity": "trained",
    "l1_mean": "measured", "l1_interval": "measured", "l2_mean": "measured", "l2_interval": "measured",
}  # fmt: skip


def label(model: str) -> str:
    """The printed name of a model.

    >>> label("llama2-7b"), label("another")
    ('Llama2-7B', 'another')
    """
    return {**BACKBONE_LABELS, **OTHER_LABELS}.get(model, model)


def _number(printed: str) -> float:
    return float(printed.replace(",", ""))


@dataclass(frozen=True, kw_only=True)
class PrintedCell:
    """One entry of one of the paper's tables, under its headings as printed, in plain characters.

    Attributes:
        printed: the entry as printed, digits kept.
        quantity: what it measures, under one name in all tables: "l_m" (tokens), "h_gq" (ratio), "cs_10k" and "cs_60k"
            (share of the original's cache at 10,240 and 61,440 tokens), "perplexity", "cache_peak" and "cache_size"
            (orders of growth), "l1_mean", "l1_interval", "l2_mean", "l2_interval" (contributions).
        model: the backbone's name in the measurements, "" in Table 1.
        method: "Original Model", "RecurFormer" or "PyramidInfer"; in Table 1 the mixer ("attention", "mamba"); else "".
        beta: share of heads replaced; None where there is none (PyramidInfer, Tables 1 and 5).
        part: the phase in Table 1 ("prefill", "generation"), the tokens in Table 5 ("first", "other"), else "".
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
    def id(self) -> str:
        """Its name in the ledger, such as "table4/llama2-7b/0.90/cs_10k"."""
        which = f"{self.beta:.2f}" if self.table == 4 else self.method.split()[0].lower() if self.method else ""
        return "/".join(filter(None, [f"table{self.table}", self.model, self.part, which, self.quantity]))

    @property
    def place(self) -> str:
        """Where it stands, as a reader would say it."""
        model = "" if not self.model or label(self.model) in f"{self.row} {self.column}" else f"{label(self.model)}, "
        return f"Table {self.table}, {model}{self.row}, {self.column}"

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return QUANTITY_KINDS[self.quantity]

    @property
    def value(self) -> float:
        """The entry as a number; NaN for an order of growth and for an interval."""
        return math.nan if self.printed[0] in "O[" else _number(self.printed)

    @property
    def bounds(self) -> tuple[float, float]:
        """Both ends of an interval; NaN for all else."""
        if not self.printed.startswith("["):
            return math.nan, math.nan
        low, high = self.printed.strip("[]").split(", ")
        return float(low), float(high)


@dataclass(frozen=True)
class TextNumber:
    """A number of section 4.1, as printed, that repeats a cell of Table 2; or a `reduction` of the cache in percent,
    100·(1 - cell), rather than the cell itself.
    """

    model: str
    method: str
    quantity: str
    printed: str
    reduction: bool = False

    @property
    def id(self) -> str:
        """Its name in the ledger."""
        which = f"{self.method.split()[0].lower()}/{self.quantity}"
        return f"text/{self.model}/{which}{'-reduction' if self.reduction else ''}"

    @property
    def place(self) -> str:
        """Where it stands, as a reader would say it."""
        return f"Section 4.1, {label(self.model)}, {self.method}, {self.quantity}"

    @property
    def value(self) -> float:
        """As a number; percent where `reduction`."""
        return _number(self.printed)

    @property
    def half_digit(self) -> float:
        """Half a unit of the last printed digit: what rounding can explain."""
        decimals = len(self.printed.partition(".")[2])
        return 0.5 * 10**-decimals
