"""What the paper printed, as data: arXiv 2410.12850, "RecurFormer: Not All Transformer Heads Need Self-Attention".

One module a table: it holds the table as it stands on the page, digits kept as strings, and a `CELLS` tuple made from
it. Nothing here is computed and nothing else in the package holds a number of the paper's.
"""

from recurformer.paper.cells import PrintedCell, cells_frame
from recurformer.paper.names import BACKBONE_LABELS, label

__all__ = ["BACKBONE_LABELS", "PrintedCell", "cells", "cells_frame", "label"]


def cells() -> tuple[PrintedCell, ...]:
    """Every entry of Tables 1 to 5, in the paper's order."""
    from recurformer.paper import table1, table2, table3, table4, table5

    return table1.CELLS + table2.CELLS + table3.CELLS + table4.CELLS + table5.CELLS
