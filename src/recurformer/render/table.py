"""A rendered table: numbers for machines, text for readers, and its four file formats."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from recurformer.render.page import pipe, render_page
from recurformer.render.registry import heading
from recurformer.results.words import counted, plain

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\(<\)", ">": r"\(>\)", "|": r"\(|\)", "–": "--",
    "β": r"\(\beta\)", "α": r"\(\alpha\)", "·": r"\(\cdot\)", "×": r"\(\times\)", "−": r"\(-\)", "±": r"\(\pm\)",
    "≥": r"\(\ge\)", "≤": r"\(\le\)", "≈": r"\(\approx\)", "≉": r"\(\not\approx\)",
    "✓": r"\(\checkmark\)", "✗": r"\(\times\)", "○": r"\(\circ\)", "²": r"\(^2\)",
    "…": r"\dots{}", "\N{NO-BREAK SPACE}": "~",
}  # fmt: skip
"""Character -> how LaTeX prints it."""
WIDEST_LINE = 60
"""Characters of a cell beyond which LaTeX breaks its column into lines."""


def escape(text: object) -> str:
    r"""Text that LaTeX prints as it stands.

    >>> escape("h_gq ≥ 5 %")
    'h\\_gq \\(\\ge\\) 5 \\%'
    """
    return str(text).translate({ord(character): printed for character, printed in SPECIAL.items()})


Line = Mapping[Any, str]
"""One line of a table: heading, or (group, heading) -> text of the cell."""


@dataclass(frozen=True, eq=False)
class Table:
    """One table, of the paper or beside it.

    Attributes:
        name: "table1" ... "table5", "lm_eval", "reviewer_questions"; the name of its files.
        title: caption, one sentence.
        frame: the numbers, tidy: what the CSV file holds.
        lines: the same as text; all have the same headings.
        notes: how to read it, and the reason of every cell that was not run.
        runs: ids of the runs behind it.
    """

    name: str
    title: str
    frame: pd.DataFrame
    lines: Sequence[Line]
    notes: Sequence[str]
    runs: tuple[str, ...] = ()

    def measured_by(self, study: str, hardware: str, runs: Sequence[str]) -> "Table":
        """The same table with a note that says where it was measured, and with the runs behind it."""
        note = f"Study {study}, {counted(len(runs), 'run')}" + (f" on {hardware}." if hardware else ".")
        return replace(self, notes=(*self.notes, note), runs=tuple(runs))

    @property
    def heading(self) -> str:
        """Its name in the paper, such as "Table 4"; its own name if it is not in the paper."""
        return heading(self.name)

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Group and heading of each column; the group is "" where there is none."""
        return [("", name) if isinstance(name, str) else name for name in self.lines[0]]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Groups of columns that stand side by side, each with the number of its columns."""
        return [(group, len(list(members))) for group, members in groupby(group for group, _ in self.columns)]

    @property
    def rows(self) -> list[list[str]]:
        """The cells, line by line."""
        return [list(line.values()) for line in self.lines]

    @property
    def words(self) -> list[bool]:
        """Which columns hold words rather than numbers: those that are aligned to the left."""
        begins = ([text[:1].isalpha() for text in cells] for cells in zip(*self.rows, strict=True))
        return [not group and 2 * sum(some) > len(some) for (group, _), some in zip(self.columns, begins, strict=True)]

    def to_csv(self) -> str:
        """The numbers, 10 significant digits, empty where there is none."""
        return self.frame.to_csv(index=False, float_format="%.10g", lineterminator="\n")

    def to_markdown(self) -> str:
        """Heading, pipe table and notes."""
        headings = [f"{group} {heading}".strip() for group, heading in self.columns]
        body = pipe(headings, self.rows, ["left" if words else "right" for words in self.words])
        notes = "".join(f"- {plain(note)}\n" for note in self.notes)
        runs = f"\n<!-- runs: {' '.join(self.runs)} -->\n" if self.runs else ""
        return f"### {self.heading}. {plain(self.title)}\n\n{body}\n\n{notes}{runs}"

    def to_html(self) -> str:
        """A self-contained page."""
        alignment = ["" if words else "number" for words in self.words]
        return render_page("table.html.j2", table=self, alignment=alignment)

    def to_latex(self) -> str:
        """A `table` environment for the packages amssymb, booktabs and adjustbox, with the label `tab:<name>`."""
        sentences = (max(map(len, cells)) > WIDEST_LINE for cells in zip(*self.rows, strict=True))
        left = (r"p{0.4\textwidth}" if broken else "l" for broken in sentences)
        alignment = "".join(letter if words else "r" for letter, words in zip(left, self.words, strict=True))
        grouped = any(group for group, _ in self.columns)
        names = [name for _, name in self.columns]
        columns = pd.MultiIndex.from_tuples(self.columns) if grouped else pd.Index(names)
        style = pd.DataFrame(self.rows, columns=columns).style.hide(axis="index")
        style = style.format(escape).format_index(escape, axis="columns")
        lines = [
            *(f"% run {run}" for run in self.runs),
            r"\begin{table}",
            r"\centering\footnotesize",
            rf"\caption{{{escape(self.title)}}}",
            rf"\label{{tab:{self.name}}}",
            r"\begin{adjustbox}{max width=\textwidth}",
            style.to_latex(column_format=alignment, hrules=True, multicol_align="c").rstrip(),
            r"\end{adjustbox}",
            *(rf"\par\smallskip\raggedright {escape(note)}" for note in self.notes),
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def write(self, path: str | Path) -> None:
        """Write the format that the suffix of `path` names: .csv, .md, .tex or .html.

        Raises:
            ValueError: another suffix.
        """
        path = Path(path)
        if path.suffix not in FORMATS:
            named = path.suffix or "without a suffix"
            raise ValueError(f"{path}: a table is written as {', '.join(FORMATS)}, not {named}")
        path.write_text(FORMATS[path.suffix](self), encoding="utf-8")


FORMATS: dict[str, Callable[[Table], str]] = {
    ".csv": Table.to_csv,
    ".md": Table.to_markdown,
    ".tex": Table.to_latex,
    ".html": Table.to_html,
}
