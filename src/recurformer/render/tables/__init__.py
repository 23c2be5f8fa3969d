"""The paper's tables and that of recovery: name -> function of measurement frames.

Its parameters are named after the kinds that it takes; one with a default may be missing.
"""

from collections.abc import Callable

from recurformer.render.tables.recovery import recovery_table
from recurformer.render.tables.table import Table
from recurformer.render.tables.table1 import table1
from recurformer.render.tables.table2 import table2
from recurformer.render.tables.table3 import table3
from recurformer.render.tables.table4 import table4
from recurformer.render.tables.table5 import table5

TABLES: dict[str, Callable[..., Table]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "recovery": recovery_table,
}

__all__ = ["TABLES", "Table"]
