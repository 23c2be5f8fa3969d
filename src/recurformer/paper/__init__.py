"""What the paper printed, as data: arXiv 2410.12850, "RecurFormer: Not All Transformer Heads Need Self-Attention".

One module a table: it holds the table as it stands on the page, digits kept as strings, and what the renderers read: a
`CELLS` tuple or a frame made from it. Nothing here is computed and nothing else in the package holds a number of the
paper's.
"""

from recurformer.paper.cells import PrintedCell
from recurformer.paper.names import BACKBONE_LABELS, label

__all__ = ["BACKBONE_LABELS", "PrintedCell", "label"]
