"""What the paper printed, as data: arXiv 2410.12850, "RecurFormer: Not All Transformer Heads Need Self-Attention".

Nothing here is computed, and nothing else in the package holds a number of the paper's: its tables, what its text
repeats, the sizes of its experiments. Its sentences stand in `recurformer.claims`.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

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
    "text-llama": "Text-Llama",
    "text-qwen2": "Text-Qwen2",
    "recall-qwen2": "Recall-Qwen2",
}
"""Models of the suite's own studies; any other model is shown by its name."""
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


@dataclass(frozen=True, kw_only=True)
class PrintedCell:
    """One entry of one of the paper's tables, under its headings as printed, in plain characters; or a number of the
    text, of table 0, that repeats one of Table 2.

    Attributes:
        printed: the entry as printed, digits kept.
        quantity: what it measures, under one name in all tables: "l_m" (tokens), "h_gq" (ratio), "cs_10k" and "cs_60k"
            (fraction of the original's cache at 10,240 and 61,440 tokens), "perplexity", "cache_peak" and "cache_size"
            (orders of growth), "l1_mean", "l1_interval", "l2_mean", "l2_interval" (contributions).
        model: the backbone's name in the measurements, "" in Table 1.
        method: "Original Model", "RecurFormer" or "PyramidInfer"; in Table 1 the mixer ("attention", "mamba"); else "".
        beta: fraction of heads replaced; None where there is none (PyramidInfer, Tables 1 and 5).
        part: the phase in Table 1 ("prefill", "generation"), the tokens in Table 5 ("first", "other"), else "".
        reduction: whether it says by how many per cent the quantity, a fraction, is below 1, rather than the quantity.
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
    reduction: bool = False

    @property
    def id(self) -> str:
        """Its name in the ledger, such as "table4/llama2-7b/0.90/cs_10k"."""
        which = f"{self.beta:.2f}" if self.table == 4 else self.method.split()[0].lower() if self.method else ""
        place = f"table{self.table}" if self.table else "text"
        quantity = f"{self.quantity}-reduction" if self.reduction else self.quantity
        return "/".join(filter(None, [place, self.model, self.part, which, quantity]))

    @property
    def place(self) -> str:
        """Where it stands, as a reader would say it."""
        if not self.table:
            return f"Section 4.1, {label(self.model)}, {self.method}, {self.quantity}"
        model = "" if not self.model or label(self.model) in f"{self.row} {self.column}" else f"{label(self.model)}, "
        return f"Table {self.table}, {model}{self.row}, {self.column}"

    @property
    def kind(self) -> str:
        """What it takes to check it; `claims/claims.yaml` explains the kinds."""
        return QUANTITY_KINDS[self.quantity]

    @property
    def value(self) -> float:
        """The entry as a number; NaN for an order of growth and for an interval."""
        return math.nan if self.printed[0] in "O[" else float(self.printed.replace(",", ""))

    @property
    def half_digit(self) -> float:
        """Half a unit of the last printed digit: what rounding can explain."""
        return 0.5 * 10 ** -len(self.printed.partition(".")[2])

    @property
    def bounds(self) -> tuple[float, float]:
        """Both ends of an interval; NaN for all else."""
        if not self.printed.startswith("["):
            return math.nan, math.nan
        low, high = self.printed.strip("[]").split(", ")
        return float(low), float(high)


GROWTH = {
    ("prefill", "attention", "cache_peak"): ("O(l_p^2 + l_p · d)", 2),
    ("prefill", "attention", "cache_size"): ("O(l_g · d)", 1),  # sic: l_g in the prefill phase
    ("prefill", "mamba", "cache_peak"): ("O(l_p · d)", 1),
    ("prefill", "mamba", "cache_size"): ("O(d)", 0),
    ("generation", "attention", "cache_peak"): ("O(l_g · d)", 1),
    ("generation", "attention", "cache_size"): ("O(l_g · d)", 1),
    ("generation", "mamba", "cache_peak"): ("O(d)", 0),
    ("generation", "mamba", "cache_size"): ("O(d)", 0),
}
"""Table 1, growth of cache peak and size, of attention with KV-cache and of Mamba: l_p is the length of the input, l_g
that of the generated tokens, d the model dimension. Beside each entry the highest power of a length in it."""
EXPONENTS = {place: exponent for place, (_, exponent) in GROWTH.items()}
"""Not printed: what a measured growth exponent is to be compared with."""
MIXER_HEADINGS = {"attention": "Attention (KV-cache)", "mamba": "Mamba"}
QUANTITY_HEADINGS = {"cache_peak": "Cache Peak", "cache_size": "Cache Size"}

QUANTITIES = ("l_m", "h_gq", "cs_10k", "cs_60k")
"""Of Tables 2 and 4: longest input, generation quality, and the cache at two lengths."""
BY_METHOD = {
    ("qwen2-0.5b", "Original Model"): ("133,120", "0.881", "1.0000", "1.0000"),
    ("qwen2-0.5b", "RecurFormer"): ("137,216", "0.815", "0.4390", "0.4375"),
    ("llama2-7b", "Original Model"): ("71,680", "0.894", "1.0000", "1.0000"),
    ("llama2-7b", "RecurFormer"): ("91,800", "0.839", "0.1030", "0.1000"),
    ("llama2-7b", "PyramidInfer"): ("71,680", "0.462", "0.1054", "0.1043"),
    ("qwen2-7b", "Original Model"): ("122,880", "0.995", "1.0000", "1.0000"),
    ("qwen2-7b", "RecurFormer"): ("132,000", "0.913", "0.1268", "0.1252"),
}
"""Table 2, by optimisation method."""
TABLE2_BETAS = {"qwen2-0.5b": 0.5, "llama2-7b": 0.9, "qwen2-7b": 0.9}
"""Fraction of heads that RecurFormer replaces in Table 2 (section 4.1)."""

PERPLEXITIES = {
    ("qwen2-0.5b", "Original"): "12.088",
    ("qwen2-0.5b", "RecurFormer"): "14.202",
    ("llama2-7b", "Original"): "9.023",
    ("llama2-7b", "RecurFormer"): "9.199",
    ("qwen2-7b", "Original"): "9.215",
    ("qwen2-7b", "RecurFormer"): "9.692",
}
"""Table 3, on the Wikipedia English validation set after continual training, RecurFormer at beta = 0.5."""

BETAS = ("0.00", "0.25", "0.50", "0.75", "0.90", "1.00")
BY_BETA = {
    "qwen2-0.5b": (
        ("133,120", "135,168", "137,216", "139,264", "142,048", "143,360"),
        ("0.881", "0.846", "0.815", "0.051", "0.000", "0.000"),
        ("1.0000", "0.7043", "0.4390", "0.3145", "0.0632", "0.0006"),
        ("1.0000", "0.7035", "0.4375", "0.3130", "0.0626", "0.0001"),
    ),
    "llama2-7b": (
        ("71,680", "75,080", "78,480", "81,920", "91,800", "94,208"),
        ("0.894", "0.849", "0.861", "0.818", "0.839", "0.000"),
        ("1.0000", "0.7510", "0.5020", "0.2530", "0.1030", "0.0040"),
        ("1.0000", "0.7500", "0.5000", "0.2500", "0.1000", "0.0010"),
    ),
    "qwen2-7b": (
        ("122,880", "125,440", "128,000", "130,560", "132,000", "133,120"),
        ("0.995", "0.987", "0.986", "0.922", "0.913", "0.000"),
        ("1.0000", "0.6578", "0.3815", "0.5930", "0.1268", "0.0007"),  # sic: 0.5930 at 0.75 exceeds 0.50's
        ("1.0000", "0.6563", "0.3800", "0.5900", "0.1252", "0.0001"),
    ),
}
"""Table 4, at every fraction beta of replaced heads: a line for each of `QUANTITIES`."""

CONTRIBUTIONS = {
    "l1_mean": "L1 Contribution, Mean",
    "l1_interval": "L1 Contribution, 95% CI",
    "l2_mean": "L2 Contribution, Mean",
    "l2_interval": "L2 Contribution, 95% CI",
}
TOKENS = {"first": "first token", "other": "non-first tokens"}
# The page does not label the two rows of a model: section 4.4 says that the first token contributes less.
BY_TOKENS = {
    ("qwen2-0.5b", "first"): ("0.0281", "[-0.0530, 0.1094]", "0.0070", "[-0.0083, 0.0222]"),
    ("qwen2-0.5b", "other"): ("0.0718", "[0.0286, 0.1152]", "0.0129", "[0.0046, 0.0212]"),
    ("llama2-7b", "first"): ("0.0082", "[-0.0320, 0.0486]", "0.0013", "[-0.0041, 0.0067]"),
    ("llama2-7b", "other"): ("0.0442", "[0.0254, 0.0630]", "0.0052", "[0.0030, 0.0074]"),
    ("qwen2-7b", "first"): ("0.0708", "[-0.5195, 0.6602]", "0.0120", "[-0.0713, 0.0947]"),
    ("qwen2-7b", "other"): ("0.1465", "[0.0615, 0.2314]", "0.0181", "[0.0075, 0.0286]"),
}
"""Table 5, mean contributions of the first and of the other tokens, with the intervals printed."""

CELLS: tuple[PrintedCell, ...] = (
    *(
        PrintedCell(
            table=1, row=phase.capitalize(), column=f"{MIXER_HEADINGS[mixer]}, {QUANTITY_HEADINGS[quantity]}",
            printed=printed, quantity=quantity, method=mixer, part=phase,
        )
        for (phase, mixer, quantity), (printed, _) in GROWTH.items()
    ),
    *(
        PrintedCell(
            table=2, row=f"{BACKBONE_LABELS[model]}, {method}", column=quantity, printed=printed, quantity=quantity,
            model=model, method=method,
            beta={"Original Model": 0.0, "RecurFormer": TABLE2_BETAS[model]}.get(method),
        )
        for (model, method), entries in BY_METHOD.items()
        for quantity, printed in zip(QUANTITIES, entries, strict=True)
    ),
    *(
        PrintedCell(
            table=3, row="PPL", column=f"{BACKBONE_LABELS[model]}, {method}", printed=printed, quantity="perplexity",
            model=model, method="Original Model" if method == "Original" else method,
            beta=0.0 if method == "Original" else 0.5,
        )
        for (model, method), printed in PERPLEXITIES.items()
    ),
    *(
        PrintedCell(
            table=4, row="l_max" if quantity == "l_m" else quantity, column=f"{BACKBONE_LABELS[model]}, {beta}",
            printed=printed, quantity=quantity, model=model,
            method="RecurFormer" if float(beta) else "Original Model", beta=float(beta),
        )
        for model, lines in BY_BETA.items()
        for quantity, entries in zip(QUANTITIES, lines, strict=True)
        for beta, printed in zip(BETAS, entries, strict=True)
    ),
    *(
        PrintedCell(
            table=5, row=f"{BACKBONE_LABELS[model]}, {TOKENS[tokens]}", column=column, printed=printed,
            quantity=quantity, model=model, part=tokens,
        )
        for (model, tokens), entries in BY_TOKENS.items()
        for (quantity, column), printed in zip(CONTRIBUTIONS.items(), entries, strict=True)
    ),
)  # fmt: skip
"""Every printed number of Tables 1-5."""

_REPEATED = {
    ("llama2-7b", "RecurFormer", "cs_10k"): "89.7",
    ("llama2-7b", "RecurFormer", "cs_60k"): "90.0",
    ("qwen2-7b", "RecurFormer", "cs_10k"): "87.3",
    ("qwen2-7b", "RecurFormer", "cs_60k"): "87.5",
    ("qwen2-0.5b", "RecurFormer", "cs_10k"): "56.1",
    ("qwen2-0.5b", "RecurFormer", "cs_60k"): "56.3",
    ("llama2-7b", "PyramidInfer", "cs_10k"): "89.46",
    ("llama2-7b", "PyramidInfer", "cs_60k"): "89.57",
    ("llama2-7b", "RecurFormer", "h_gq"): "0.839",
    ("llama2-7b", "Original Model", "h_gq"): "0.894",
    ("llama2-7b", "PyramidInfer", "h_gq"): "0.462",
    ("llama2-7b", "Original Model", "l_m"): "71,680",
    ("llama2-7b", "RecurFormer", "l_m"): "91,800",
    ("qwen2-7b", "Original Model", "l_m"): "122,880",
    ("qwen2-7b", "RecurFormer", "l_m"): "132,000",
}
NUMBERS: tuple[PrintedCell, ...] = tuple(
    replace(cell, table=0, printed=printed, reduction=cell.quantity.startswith("cs_"))
    for repeated, printed in _REPEATED.items()
    for cell in CELLS
    if cell.table == 2 and (cell.model, cell.method, cell.quantity) == repeated
)
"""Every number of section 4.1 that repeats Table 2; of the caches it has the reductions in per cent."""


CACHE_LENGTHS = {"cs_10k": 10_240, "cs_60k": 61_440}
"""Quantity -> tokens in the cache (Table 2)."""
D_CONV, D_STATE, EXPAND, DT_RANK = 4, 16, 2, 256
"""The Mamba block (appendix B)."""
LLAMA2_7B_WIDTH, LLAMA2_7B_LAYERS = 4096, 32
"""Published shape of the one backbone whose value heads fill the model's width."""
PYRAMIDINFER_RATIO, PYRAMIDINFER_MINIMUM = 0.7, 32
"""P_reduce and P_min (appendix B)."""
LOCAL_FRACTION = 0.1
"""k of equation 1 over the length of a sample: 102 of 1,024 tokens (appendix B)."""
WINDOWS = {"profile": 1024, "sink": 1024, "influence": 1024, "contribution": 512, "attention_map": 512}
"""Wikipedia samples behind RA-I (appendix B), Figures 2 and 1, Table 5 and Figure 5 (section 4.4)."""

_MAMBA = {"mamba_d_conv": D_CONV, "mamba_d_state": D_STATE, "mamba_expand": EXPAND, "mamba_dt_rank": DT_RANK}
_HASHHOP = {"task_form": "text", "task_hops": 16, "task_hash_length": 8, "task_characters": 6144}
SETTINGS: dict[str, dict[str, Any]] = {
    "cache": _MAMBA,
    "complexity": _MAMBA,
    "memory": {**_MAMBA, "memory_gib": 80.0},
    **dict.fromkeys(["hashhop", "baseline", "pyramidinfer_hashhop"], _HASHHOP),
    "mqar": {"hidden_size": 512, "layers": 2, "heads": 8, "kv_heads": 4},
    "profile": {"tokens": 1024, "window": 102},
    "sink": {"tokens": 32},
    "contribution": {"tokens": 256},
    "attention_map": {"tokens": 256},
}
"""Kind of measurement -> what the paper sets (sections 4.1, 4.3, 4.4, appendix B), under the names that our stages have
for it. It sets nothing else: other kinds are at its scale when the models are."""
