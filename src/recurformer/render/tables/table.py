"""A rendered table: numbers for machines, text for readers, and its four file formats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from recurformer.render.markdown import cell, plain
from recurformer.render.tables.html import html_table
from recurformer.render.tables.latex import column_pairs, latex_table


@dataclass(frozen=True, eq=False)
class Table:
    """One table, of the paper or beside it.

    Attributes:
        name: "table1" ... "table5", "reviewer_questions"; the name of its files.
        title: caption, one sentence.
        frame: the numbers, tidy: what the CSV file holds.
        display: the same as text, one row a line; columns are pairs (group, heading), the group "" where there is none.
        notes: how to read it, and the reason of every cell that was not run.
        runs: ids of the runs behind it.
    """

    name: str
    title: str
    frame: pd.DataFrame
    display: pd.DataFrame
    notes: tuple[str, ...]
    runs: tuple[str, ...] = ()

    def measured_by(self, study: str, hardware: str, runs: Sequence[str]) -> "Table":
        """The same table with a note that says where it was measured, and with the runs behind it."""
        note = f"Study {study}, {len(runs)} runs" + (f" on {hardware}." if hardware else ".")
        return replace(self, notes=(*self.notes, note), runs=tuple(runs))

    def to_csv(self) -> str:
        """The numbers, 10 significant digits, empty where there is none."""
        return self.frame.to_csv(index=False, float_format="%.10g", lineterminator="\n")

    @property
    def heading(self) -> str:
        """What the paper calls it, "Table 4"; a table that the paper has not is called by its name."""
        return self.name.replace("table", "Table ").replace("_", " ").capitalize()

    def to_markdown(self) -> str:
        """Heading, pipe table and notes."""
        headings = [cell(f"{group} {heading}".strip()) for group, heading in column_pairs(self.display)]
        cells = [[cell(str(value)) for value in row] for row in self.display.to_numpy()]
        align = ["left" if is_text else "right" for is_text in _text_columns(self.display)]
        body = tabulate(cells, headings, tablefmt="pipe", disable_numparse=True, colalign=align)
        notes = "".join(f"- {plain(note)}\n" for note in self.notes)
        runs = f"\n<!-- runs: {' '.join(self.runs)} -->\n" if self.runs else ""
        return f"### {self.heading}. {plain(self.title)}\n\n{body}\n\n{notes}{runs}"

    def to_latex(self) -> str:
        """A table environment for the packages amssymb, booktabs and adjustbox."""
        runs = "".join(f"% run {run}\n" for run in self.runs)
        return runs + latex_table(self.name, self.title, self.display, self.notes, _text_columns(self.display))

    def to_html(self) -> str:
        """A page of its own."""
        return html_table(self.heading, self.title, self.display, self.notes, _text_columns(self.display), self.runs)

    def write(self, path: str | Path) -> None:
        """Write the format that the suffix of `path` names: .csv, .md, .tex or .html.

        Raises:
            ValueError: another suffix.
        """
        path = Path(path)
        if path.suffix not in FORMATS:
            raise ValueError(
                f"{path}: a table is written as {', '.join(FORMATS)}, not {path.suffix or 'without a suffix'}"
            )
        path.write_text(FORMATS[path.suffix](self), encoding="utf-8")


FORMATS: dict[str, Callable[[Table], str]] = {
    ".csv": Table.to_csv,
    ".md": Table.to_markdown,
    ".tex": Table.to_latex,
    ".html": Table.to_html,
}


def _text_columns(display: pd.DataFrame) -> list[bool]:
    """Which columns hold words rather than numbers: those that are aligned to the left."""
    words = display.map(lambda cell: any(character.isalpha() for character in str(cell))).mean()
    return [group == "" and share > 0.5 for (group, _), share in zip(column_pairs(display), words, strict=True)]
