"""Words of tables and ledgers: the verdicts with their marks, numbers, and texts of others within Markdown."""

import math
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

NOTHING = "–"
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
REPRODUCED, CONSISTENT, CONTRADICTED, FAILS_SMALL = "reproduced", "consistent", "contradicted", "fails-small"
PAPER_INCONSISTENT, UNDECIDED, NOT_RUN = "paper-inconsistent", "undecided", "not-run"
MARKS = {
    REPRODUCED: "✓", CONSISTENT: "≈", CONTRADICTED: "✗", FAILS_SMALL: "≉", PAPER_INCONSISTENT: "!", UNDECIDED: "?",
    NOT_RUN: "○",
}  # fmt: skip
"""The verdicts, each with the mark that stands for it in a table."""
MEANINGS = {
    REPRODUCED: "the test holds at the paper's scale",
    CONSISTENT: "it holds at a smaller scale",
    CONTRADICTED: "it fails at the paper's scale",
    FAILS_SMALL: "it fails at a smaller scale, which does not contradict the paper's own",
    PAPER_INCONSISTENT: "the paper contradicts itself",
    UNDECIDED: "it was measured, but the measurement does not decide it, for the reason given",
    NOT_RUN: "nothing here has measured it, for the reason given",
}


class Verdict(NamedTuple):
    """A verdict on a cell of a table."""

    verdict: str = ""
    """One of `MARKS`; empty where there is none."""
    verdict_recording: str = ""
    """The recording whose measurement it is about; empty where it is about the number of the table itself."""
    verdict_runs: str = ""
    """The ids of the runs that measured it there, as far as they are known."""

    @property
    def mark(self) -> str:
        """Its mark, which says so where the verdict is about a recording."""
        return MARKS.get(self.verdict, NOTHING) + f" {RECORDED}" * bool(self.verdict_recording)


Verdicts = Mapping[str, Verdict]
"""Id of a claim -> its verdict."""
RECORDED = "recorded"
"""The word beside a verdict that is about a recording."""
CHANGED = "Measured from a working tree that differed from its commit, or had files beside it –"
BORROWED = (
    f"“{RECORDED}” beside a verdict: it is about an earlier measurement, not about the number beside it. CSV: the "
    "recording (verdict_recording) and, where they are known, its runs (verdict_runs)."
)
LEGEND = f"Verdicts: {', '.join(f'{sign} {verdict}' for verdict, sign in MARKS.items())}; the reasons: claims.md."


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


def from_to(counts: Collection[int]) -> str:
    """The least and the most of some counts, or the one that they all are.

    >>> from_to([3, 1, 2]), from_to([3, 3])
    ('1 to 3', '3')
    """
    return " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


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
