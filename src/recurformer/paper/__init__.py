"""What the paper printed, as data: arXiv 2410.12850, "RecurFormer: Not All Transformer Heads Need Self-Attention".

Nothing here is computed, and nothing else in the package holds a number of the paper's. `sizes` has those of its
experiments; its sentences stand in `recurformer.claims`.
"""

from recurformer.paper.entries import BACKBONE_LABELS, PrintedCell, TextNumber, label
from recurformer.paper.printed import CELLS, EXPONENTS, NUMBERS, TABLE2_BETAS

__all__ = [
    "BACKBONE_LABELS", "CELLS", "EXPONENTS", "NUMBERS", "TABLE2_BETAS", "PrintedCell",
    "TextNumber", "label",
]  # fmt: skip
