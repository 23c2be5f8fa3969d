"""Calling a table or figure with the measurements that it takes, and picking a row of a table."""

import inspect
from collections.abc import Callable
from functools import wraps
from itertools import cycle
from typing import Any

import pandas as pd

from recurformer.claims import ledger
from recurformer.paper import CELLS
from recurformer.render.table import Table
from recurformer.render.tables import TABLES
from recurformer.render.tables_studies import questions_table
from recurformer.results.words import MARKS, Verdict

VERDICTS = dict(zip((cell.id for cell in CELLS), map(Verdict, cycle(MARKS)), strict=False))
"""Every printed cell has some verdict, each of them occurs."""


@wraps(ledger.reviewer_questions)
def reviewer_questions(**frames: pd.DataFrame) -> Table:
    return questions_table(ledger.reviewer_questions(**frames))


ALL_TABLES = {**TABLES, "reviewer_questions": reviewer_questions}
GIVEN = {"verdicts": VERDICTS, "recorded": {}, "recordings": [], "records": {}}


def kinds_of(renderer: Callable, *, needed: bool = False) -> list[str]:
    """The kinds of measurements that a renderer takes, or those that it cannot do without."""
    parameters = inspect.signature(renderer).parameters.items()
    kinds = [kind for kind, parameter in parameters if not needed or parameter.default is inspect.Parameter.empty]
    return [kind for kind in kinds if kind not in GIVEN]


def render(renderer: Callable, frames: dict[str, pd.DataFrame]) -> Any:
    """A table or figure of those frames that it takes."""
    given = {**frames, **GIVEN}
    return renderer(**{name: given[name] for name in inspect.signature(renderer).parameters if name in given})


def build(name: str, measurements: dict[str, pd.DataFrame], **replaced: pd.DataFrame) -> Table:
    return render(ALL_TABLES[name], measurements | replaced)


def lines_of(table: Table) -> pd.DataFrame:
    """What a reader sees of a table."""
    return pd.DataFrame(table.lines)


def pick(frame: pd.DataFrame, **where) -> pd.Series:
    for column, value in where.items():
        frame = frame[frame[column] == value]
    assert len(frame) == 1, f"{len(frame)} rows for {where}"
    return frame.iloc[0]
