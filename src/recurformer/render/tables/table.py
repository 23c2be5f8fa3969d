"""A rendered table: numbers for machines, text for readers, and its four file formats."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from recurformer.render.page import render_page
from recurformer.render.tables.cell_text import cell, counted, plain

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\(<\)", ">": r"\(>\)", "|": r"\(|\)", "–": "--",
    "β": r"\(\beta\)", "α": r"\(\alpha\)", "·": r"\(\cdot\)", "×": r"\(\times\)", "−": r"\(-\)", "±": r"\(\pm\)",
    "≥": r"\(\ge\)", "≤": r"\(\le\)", "≈": r"\(\approx\)", "≉": r"\(\not\approx\)",
    "✓": r"\(\checkmark\)", "✗": r"\(\times\)", "○": r"\(\circ\)", "²": r"\(^2\)",
    "…": r"\dots{}", "\N{NO-BREAK SPACE}": "~",
}  # fmt: skip
"""Character -> how LaTeX prints it."""
SYMBOL = re.compile(r"\b(l|h|cs)_(m|gq|10k|60k|p|g)(?![A-Za-z0-9])(\^\d)?")
"""The paper's symbols, set in mathematics; the only place where an underscore is no underscore."""
WIDEST_LINE = 60
"""Characters of a cell beyond which LaTeX breaks its column into lines."""


def _escape_plain(text: str) -> str:
    return "".join(SPECIAL.get(character, character) for character in text)


def escape(text: str) -> str:
    r"""Text that LaTeX prints as it stands, the paper's symbols as mathematics.

    >>> escape("h_gq & 5 %")
    '\\(h_{gq}\\) \\& 5 \\%'
    """
    pieces, end = [], 0
    for symbol in SYMBOL.finditer(text):
        base, index, power = symbol.groups()
        pieces += [_escape_plain(text[end : symbol.start()]), rf"\({base}_{{{index}}}{power or ''}\)"]
        end = symbol.end()
    return "".join([*pieces, _escape_plain(text[end:])])


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
        return self.name.replace("table", "Table ").replace("_", " ").capitalize()

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
        headings = [cell(f"{group} {heading}".strip()) for group, heading in self.columns]
        cells = [[cell(text) for text in row] for row in self.rows]
        align = ["left" if words else "right" for words in self.words]
        body = tabulate(cells, headings, tablefmt="pipe", disable_numparse=True, colalign=align)
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
        lines = [
            *(f"% run {run}" for run in self.runs),
            r"\begin{table}",
            r"  \centering\footnotesize",
            rf"  \caption{{{escape(self.title)}}}",
            rf"  \label{{tab:{self.name}}}",
            r"  \begin{adjustbox}{max width=\textwidth}",
            rf"  \begin{{tabular}}{{{alignment}}}",
            r"    \toprule",
            *(f"    {line}" for line in self._latex_groups()),
            f"    {_latex_line([heading for _, heading in self.columns])}",
            r"    \midrule",
            *(f"    {_latex_line(row)}" for row in self.rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"  \end{adjustbox}",
            *(rf"  \par\smallskip\raggedright {escape(note)}" for note in self.notes),
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def _latex_groups(self) -> list[str]:
        """The line of the groups, which span their columns, and the rules below them."""
        if not any(group for group, _ in self.groups):
            return []
        spans, rules, start = [], [], 1
        for group, count in self.groups:
            spans.append(rf"\multicolumn{{{count}}}{{c}}{{{escape(group)}}}" if group else " & " * (count - 1))
            if group:
                rules.append(rf"\cmidrule(lr){{{start}-{start + count - 1}}}")
            start += count
        return [" & ".join(spans) + r" \\", " ".join(rules)]

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


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(escape, cells)) + r" \\"
