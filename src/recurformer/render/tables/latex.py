"""LaTeX source of a table of texts."""

import re
from collections.abc import Sequence
from itertools import groupby

import pandas as pd

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\(<\)", ">": r"\(>\)", "|": r"\(|\)", "–": "--",
    "β": r"\(\beta\)", "α": r"\(\alpha\)", "·": r"\(\cdot\)", "×": r"\(\times\)", "−": r"\(-\)", "±": r"\(\pm\)",
    "≥": r"\(\ge\)", "≤": r"\(\le\)", "≈": r"\(\approx\)", "≉": r"\(\not\approx\)",
    "✓": r"\(\checkmark\)", "✗": r"\(\times\)", "○": r"\(\circ\)", "²": r"\(^2\)",
    "…": r"\dots{}", "\N{NO-BREAK SPACE}": "~",
}  # fmt: skip
SYMBOL = re.compile(r"\b(l|h|cs)_(m|gq|10k|60k|p|g)(?![A-Za-z0-9])(\^\d)?")
"""The paper's symbols, set in mathematics; the only place where an underscore is no underscore."""
WIDEST_LINE = 60
"""Characters of a cell beyond which its column is broken into lines."""


def escape(text: str) -> str:
    r"""Text that LaTeX prints as it stands, the paper's symbols as mathematics.

    >>> escape("h_gq & 5 %")
    '\\(h_{gq}\\) \\& 5 \\%'
    """
    pieces, end = [], 0
    for symbol in SYMBOL.finditer(text):
        pieces.append("".join(SPECIAL.get(character, character) for character in text[end : symbol.start()]))
        base, index, power = symbol.groups()
        pieces.append(rf"\({base}_{{{index}}}{power or ''}\)")
        end = symbol.end()
    pieces.append("".join(SPECIAL.get(character, character) for character in text[end:]))
    return "".join(pieces)


def column_pairs(display: pd.DataFrame) -> list[tuple[str, str]]:
    """The columns of a display frame: (group, heading)."""
    return [(str(column[0]), str(column[1])) for column in display.columns.to_flat_index()]


def _header(columns: Sequence[tuple[str, str]]) -> list[str]:
    """One or two lines of headings, groups spanning their columns."""
    lines = []
    if any(group for group, _ in columns):
        spans, rules, start = [], [], 1
        for group, members in groupby(columns, key=lambda column: column[0]):
            count = len(list(members))
            spans.append(rf"\multicolumn{{{count}}}{{c}}{{{escape(group)}}}" if group else " & ".join([""] * count))
            if group:
                rules.append(rf"\cmidrule(lr){{{start}-{start + count - 1}}}")
            start += count
        lines += [" & ".join(spans) + r" \\", " ".join(rules)]
    return [*lines, " & ".join(escape(heading) for _, heading in columns) + r" \\"]


def _alignment(is_text: bool, characters: int) -> str:
    """The letter of a column; sentences are broken into lines."""
    if not is_text:
        return "r"
    return "l" if characters <= WIDEST_LINE else r"p{0.4\textwidth}"


def latex_table(
    name: str, title: str, display: pd.DataFrame, notes: Sequence[str], text_columns: Sequence[bool]
) -> str:
    """A `table` environment (packages amssymb, booktabs and adjustbox): caption, label, rows, notes.

    Args:
        name: label, `tab:<name>`.
        title: caption.
        display: texts; columns are pairs (group, heading).
        notes: lines below the table.
        text_columns: for each column, whether it is aligned to the left.
    """
    columns = column_pairs(display)
    rows = [" & ".join(escape(str(cell)) for cell in row) + r" \\" for row in display.to_numpy()]
    widths = display.map(lambda cell: len(str(cell))).max()
    alignment = [_alignment(is_text, width) for is_text, width in zip(text_columns, widths, strict=True)]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering\footnotesize",
            rf"  \caption{{{escape(title)}}}",
            rf"  \label{{tab:{name}}}",
            r"  \begin{adjustbox}{max width=\textwidth}",
            rf"  \begin{{tabular}}{{{''.join(alignment)}}}",
            r"    \toprule",
            *(f"    {line}" for line in _header(columns)),
            r"    \midrule",
            *(f"    {row}" for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"  \end{adjustbox}",
            *(rf"  \par\smallskip\raggedright {escape(note)}" for note in notes),
            r"\end{table}",
            "",
        ]
    )
