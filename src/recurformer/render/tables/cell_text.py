"""Texts of cells: numbers, and texts of others within Markdown, which would else take them for markup."""

import math
import re

NOTHING = "–"
NOT_RUN = "not-run"
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def number(value: float, decimals: int, signed: bool = False) -> str:
    """A number with its decimals and thousands separators, a dash when there is none; `signed` for differences.

    >>> number(91800, 0), number(-0.01234, 4, signed=True), number(float("nan"), 2)
    ('91,800', '−0.0123', '–')
    """
    if value is None or math.isnan(value):
        return NOTHING
    text = f"{abs(value):,.{decimals}f}"
    if float(text.replace(",", "")) == 0:
        return text
    return f"{'−' if value < 0 else '+' if signed else ''}{text}"


def interval(low: float, high: float, decimals: int) -> str:
    """An interval in brackets, nothing when there is none."""
    if low is None or math.isnan(low):
        return ""
    return f"[{number(low, decimals)}, {number(high, decimals)}]"


def estimated(value: float, low: float, high: float, decimals: int) -> str:
    """A number with its interval, where it has one.

    >>> estimated(0.5, 0.25, 0.75, 2), estimated(3, float("nan"), float("nan"), 1)
    ('0.50 [0.25, 0.75]', '3.0')
    """
    return f"{number(value, decimals)} {interval(low, high, decimals)}".strip()


def counted(count: int, noun: str) -> str:
    """So many of something.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def beside(ours: str, paper: str, marks: str) -> str:
    """Ours, the paper's in parentheses, and the mark of the verdict; ours alone where the paper has no value.

    >>> beside("0.5123", "0.4390", "✗"), beside("not-run", "0.881", "○"), beside("0.5053", "–", "–")
    ('0.5123 (0.4390) ✗', '– (0.881) ○', '0.5053')
    """
    if paper == NOTHING:
        return ours
    return f"{NOTHING if ours == NOT_RUN else ours} ({paper}) {marks}"


def plain(text: str) -> str:
    """A text that Markdown shows as it stands on one line: without tags of HTML.

    >>> plain("<img src=x> 0 < 1")
    '&lt;img src=x> 0 < 1'
    """
    return _TAG.sub("&lt;", text.replace("\n", " "))


def cell(text: str) -> str:
    """The same within a cell of a table."""
    return plain(text).replace("|", r"\|")
