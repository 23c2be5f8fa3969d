"""Table 5: mean L1 and L2 contributions of the first and of the other tokens, with the intervals printed."""

import pandas as pd

from recurformer.paper.cells import PrintedCell
from recurformer.paper.names import BACKBONE_LABELS

COLUMNS = {
    "l1_mean": "L1 Contribution, Mean",
    "l1_interval": "L1 Contribution, 95% CI",
    "l2_mean": "L2 Contribution, Mean",
    "l2_interval": "L2 Contribution, 95% CI",
}
TOKENS = {"first": "first token", "other": "non-first tokens"}
# The page does not label the two rows of a model: section 4.4 says that the first token contributes less.
PRINTED = {
    ("qwen2-0.5b", "first"): ("0.0281", "[-0.0530, 0.1094]", "0.0070", "[-0.0083, 0.0222]"),
    ("qwen2-0.5b", "other"): ("0.0718", "[0.0286, 0.1152]", "0.0129", "[0.0046, 0.0212]"),
    ("llama2-7b", "first"): ("0.0082", "[-0.0320, 0.0486]", "0.0013", "[-0.0041, 0.0067]"),
    ("llama2-7b", "other"): ("0.0442", "[0.0254, 0.0630]", "0.0052", "[0.0030, 0.0074]"),
    ("qwen2-7b", "first"): ("0.0708", "[-0.5195, 0.6602]", "0.0120", "[-0.0713, 0.0947]"),
    ("qwen2-7b", "other"): ("0.1465", "[0.0615, 0.2314]", "0.0181", "[0.0075, 0.0286]"),
}

CELLS = tuple(
    PrintedCell(
        table=5, row=f"{BACKBONE_LABELS[model]}, {TOKENS[tokens]}", column=column, printed=printed, quantity=quantity,
        model=model, part=tokens,
    )
    for (model, tokens), entries in PRINTED.items()
    for (quantity, column), printed in zip(COLUMNS.items(), entries, strict=True)
)  # fmt: skip


def contributions() -> pd.DataFrame:
    """The contributions: model, norm ("l1", "l2"), tokens ("first", "other"), mean, low, high."""
    cells = {(cell.model, cell.part, cell.quantity): cell for cell in CELLS}
    rows = [
        (
            model,
            norm,
            tokens,
            cells[model, tokens, f"{norm}_mean"].value,
            *cells[model, tokens, f"{norm}_interval"].bounds,
        )
        for model, tokens in PRINTED
        for norm in ("l1", "l2")
    ]
    return pd.DataFrame(rows, columns=["model", "norm", "tokens", "mean", "low", "high"])
