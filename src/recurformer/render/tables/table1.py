"""Table 1: the printed orders of growth beside the growth that was measured."""

import pandas as pd

from recurformer.paper import CELLS, EXPONENTS
from recurformer.paper.printed import MIXER_HEADINGS, QUANTITY_HEADINGS
from recurformer.render.tables.table import Table
from recurformer.results.cells import exponents
from recurformer.results.frames import records, require, runs_of
from recurformer.results.words import LEGEND, MARKS, NOTHING, Verdicts, beside, number


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
                **exponents(chosen), "claim": cell.id, "verdict": verdicts.get(cell.id, ""), "runs": runs_of(chosen),
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
