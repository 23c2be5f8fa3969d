"""The paper's tables, and those of lm-eval and of recovery: name -> function of measurement frames.

Parameters are named after the kinds of measurements that they take (`recurformer.results.frames.COLUMNS`); one
with a default may be missing. Besides these, `verdicts` are those of the paper's cells, and `recorded` is what
recordings keep of cards. All raise ValueError for a kind without rows or without one of its columns.
"""

from collections.abc import Callable

from recurformer.render.tables.comparison import KINDS as CARD_KINDS
from recurformer.render.tables.lm_eval import lm_eval_table
from recurformer.render.tables.questions import questions_table
from recurformer.render.tables.recovery import recovery_table
from recurformer.render.tables.table import Table
from recurformer.render.tables.table1 import table1
from recurformer.render.tables.table2_4 import table2, table4
from recurformer.render.tables.table3 import table3
from recurformer.render.tables.table5 import table5

TABLES: dict[str, Callable[..., Table]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "lm_eval": lm_eval_table,
    "recovery": recovery_table,
}

__all__ = ["CARD_KINDS", "TABLES", "Table", "questions_table"]
