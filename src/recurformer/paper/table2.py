"""Table 2: longest input, generation quality and cache size by optimisation method."""

from recurformer.paper.cells import PrintedCell
from recurformer.paper.names import BACKBONE_LABELS

COLUMNS = {"l_m": "l_m", "h_gq": "h_gq", "cs_10k": "cs_10k", "cs_60k": "cs_60k"}
PRINTED = {
    ("qwen2-0.5b", "Original Model"): ("133,120", "0.881", "1.0000", "1.0000"),
    ("qwen2-0.5b", "RecurFormer"): ("137,216", "0.815", "0.4390", "0.4375"),
    ("llama2-7b", "Original Model"): ("71,680", "0.894", "1.0000", "1.0000"),
    ("llama2-7b", "RecurFormer"): ("91,800", "0.839", "0.1030", "0.1000"),
    ("llama2-7b", "PyramidInfer"): ("71,680", "0.462", "0.1054", "0.1043"),
    ("qwen2-7b", "Original Model"): ("122,880", "0.995", "1.0000", "1.0000"),
    ("qwen2-7b", "RecurFormer"): ("132,000", "0.913", "0.1268", "0.1252"),
}
BETAS = {"qwen2-0.5b": 0.5, "llama2-7b": 0.9, "qwen2-7b": 0.9}
"""Share of heads that RecurFormer replaces in this table (section 4.1)."""


def _beta(model: str, method: str) -> float | None:
    return {"Original Model": 0.0, "RecurFormer": BETAS[model]}.get(method)


CELLS = tuple(
    PrintedCell(
        table=2, row=f"{BACKBONE_LABELS[model]}, {method}", column=column, printed=printed, quantity=quantity,
        model=model, method=method, beta=_beta(model, method),
    )
    for (model, method), entries in PRINTED.items()
    for (quantity, column), printed in zip(COLUMNS.items(), entries, strict=True)
)  # fmt: skip
