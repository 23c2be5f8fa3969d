"""A table of texts as a self-contained HTML page."""

from collections.abc import Sequence
from itertools import groupby

import pandas as pd

from recurformer.render.page import render_page
from recurformer.render.tables.latex import column_pairs


def html_table(
    heading: str,
    title: str,
    display: pd.DataFrame,
    notes: Sequence[str],
    text_columns: Sequence[bool],
    runs: Sequence[str] = (),
) -> str:
    """A page with one table: what the paper calls it, title, groups spanning their columns, rows, notes.

    Args:
        heading: the name with its number, "Table 4".
        title: caption.
        display: texts; columns are pairs (group, heading).
        notes: lines below the table.
        text_columns: for each column, whether it is aligned to the left.
        runs: ids of the runs behind it, kept in the page's metadata.
    """
    columns = column_pairs(display)
    return render_page(
        "table.html.j2",
        heading=heading,
        title=title,
        groups=[(group, len(list(members))) for group, members in groupby(group for group, _ in columns)],
        headings=[text for _, text in columns],
        rows=display.to_numpy().tolist(),
        notes=notes,
        runs=runs,
        alignment=["" if is_text else "number" for is_text in text_columns],
    )
