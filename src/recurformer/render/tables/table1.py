"""Table 1: the printed orders of growth beside the growth that was measured."""

import numpy as np
import pandas as pd

from recurformer.paper import CELLS, EXPONENTS
from recurformer.paper.printed import MIXER_HEADINGS, QUANTITY_HEADINGS
from recurformer.render.measurements import records, require, runs_of
from recurformer.render.tables.table import Table
from recurformer.render.words import LEGEND, MARKS, NOTHING, Verdicts, beside, number


def growth_exponent(lengths: np.ndarray, sizes: np.ndarray) -> float:
    """Slope of log(bytes) over log(length), by least squares.

    Raises:
        ValueError: fewer than two lengths, or a length or size that is not positive.
    """
    if len(np.unique(lengths)) < 2:
        raise ValueError(
            f"complexity measurements: a growth exponent needs at least 2 lengths, got {len(np.unique(lengths))}"
        )
    if (lengths <= 0).any() or (sizes <= 0).any():
        raise ValueError("complexity measurements: lengths and bytes must be positive to be fitted on a log-log scale")
    return float(np.polyfit(np.log(lengths), np.log(sizes), 1)[0])


def _points(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Lengths, and the mean bytes at each."""
    points = rows.groupby("length")["bytes"].mean()
    return points.index.to_numpy(dtype=float), points.to_numpy(dtype=float)


def exponent_of(rows: pd.DataFrame) -> float:
    """Growth exponent of the mean bytes at each length.

    Raises:
        ValueError: as `growth_exponent`.
    """
    return growth_exponent(*_points(rows))


def _exponents(rows: pd.DataFrame) -> dict[str, float]:
    """Fit over all lengths, and between the two longest, where lower-order terms weigh least."""
    if rows.empty:
        return {}
    lengths, sizes = _points(rows)
    return {
        "exponent": growth_exponent(lengths, sizes),
        "exponent_longest": growth_exponent(lengths[-2:], sizes[-2:]),
        "shortest_length": int(lengths[0]),
        "longest_length": int(lengths[-1]),
        "lengths": len(lengths),
        "bytes_at_longest": float(sizes[-1]),
    }


def table1(complexity: pd.DataFrame, verdicts: Verdicts) -> Table:
    """Table 1: each O(.) beside the exponent of a log-log fit of bytes over length.

    Raises:
        ValueError: fewer than two lengths, or bytes that are not positive.
    """
    require(complexity, "complexity")
    rows = []
    for cell in (cell for cell in CELLS if cell.table == 1):
        place = {"phase": cell.part, "mixer": cell.method, "quantity": cell.quantity}
        chosen = complexity[(complexity[list(place)] == list(place.values())).all(axis=1)]
        rows.append(
            {
                **place, "paper": cell.printed, "paper_exponent": EXPONENTS[cell.part, cell.method, cell.quantity],
                **_exponents(chosen), "claim": cell.id, "verdict": verdicts.get(cell.id, ""), "runs": runs_of(chosen),
            }
        )  # fmt: skip
    frame = pd.DataFrame(rows)
    if "exponent" not in frame:
        raise ValueError("complexity measurements have no row of a mixer, phase and quantity that Table 1 knows")
    frame["difference"] = frame["exponent"] - frame["paper_exponent"]
    lines = [
        {
            "Phase": row.phase.capitalize(), "Mixer": MIXER_HEADINGS[row.mixer],
            "Quantity": QUANTITY_HEADINGS[row.quantity], "Paper": row.paper,
            "Exponent": beside(number(row.exponent, 2), number(row.paper_exponent, 0), MARKS.get(row.verdict, NOTHING)),
        }
        for row in records(frame)
    ]  # fmt: skip
    notes = (
        "Paper: as printed; l_p is the length of the input, l_g that of the generated text, d the model dimension. "
        "The exponent in parentheses is the highest power of a length in it.",
        "Ours: slope of log(bytes) over log(length), least squares over the lengths "
        f"{', '.join(f'{length:,}' for length in sorted(complexity['length'].unique()))}. CSV: also between the two "
        "longest of them, where lower-order terms weigh least.",
        LEGEND,
    )
    title = "Growth of cache peak and cache size with the length, printed and measured"
    return Table("table1", title, frame, lines, notes)
