"""Numbers as the cells of a table show them."""

import math

NOTHING = "–"
NOT_RUN = "not-run"


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
