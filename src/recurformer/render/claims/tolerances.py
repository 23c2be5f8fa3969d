"""How far the paper's own tables let quality fall where its text calls it matching or comparable."""

from recurformer.paper import CELLS
from recurformer.paper import TABLE2_BETAS as BETAS

_PRINTED = {(cell.table, cell.quantity, cell.model, cell.method): cell.value for cell in CELLS}
ALLOWED_DROP = max(
    _PRINTED[2, "h_gq", model, "Original Model"] - _PRINTED[2, "h_gq", model, "RecurFormer"] for model in BETAS
)
"""The largest loss of h_gq that Table 2 prints and the text calls matching."""
ALLOWED_RATIO = max(
    _PRINTED[3, "perplexity", model, "RecurFormer"] / _PRINTED[3, "perplexity", model, "Original Model"]
    for model in BETAS
)
"""The largest ratio of perplexities that Table 3 prints and the text calls comparable."""
