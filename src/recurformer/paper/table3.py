"""Table 3: perplexity on the Wikipedia English validation set after continual training, RecurFormer at beta = 0.5."""

from recurformer.paper.cells import PrintedCell
from recurformer.paper.names import BACKBONE_LABELS

BETAS = {"Original": 0.0, "RecurFormer": 0.5}
PRINTED = {
    "qwen2-0.5b": {"Original": "12.088", "RecurFormer": "14.202"},
    "llama2-7b": {"Original": "9.023", "RecurFormer": "9.199"},
    "qwen2-7b": {"Original": "9.215", "RecurFormer": "9.692"},
}

CELLS = tuple(
    PrintedCell(
        table=3, row="PPL", column=f"{BACKBONE_LABELS[model]}, {method}", printed=printed, quantity="perplexity",
        model=model, method="Original Model" if method == "Original" else method, beta=BETAS[method],
    )
    for model, entries in PRINTED.items()
    for method, printed in entries.items()
)  # fmt: skip
