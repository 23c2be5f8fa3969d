"""What the paper printed, as data: arXiv 2410.12850, "RecurFormer: Not All Transformer Heads Need Self-Attention".

One module a table: it holds the table as it stands on the page, digits kept as strings, and its `CELLS`. Besides them
`numbers` (numbers that the text repeats). Nothing here is computed and nothing else in the package holds a number of
the paper's; its sentences stand in `recurformer.claims`.
"""

from recurformer.paper.cells import PrintedCell
from recurformer.paper.names import BACKBONE_LABELS, label
from recurformer.paper.numbers import NUMBERS, TextNumber
from recurformer.paper.table1 import CELLS as TABLE1
from recurformer.paper.table2 import CELLS as TABLE2
from recurformer.paper.table3 import CELLS as TABLE3
from recurformer.paper.table4 import CELLS as TABLE4
from recurformer.paper.table5 import CELLS as TABLE5

CELLS: tuple[PrintedCell, ...] = (*TABLE1, *TABLE2, *TABLE3, *TABLE4, *TABLE5)
"""Every printed number of Tables 1-5."""

__all__ = ["BACKBONE_LABELS", "CELLS", "NUMBERS", "PrintedCell", "TextNumber", "label"]
