"""Table 5: contributions of the first token and of the other tokens."""

import numpy as np
import pandas as pd

from recurformer.paper import BACKBONE_LABELS, CELLS, label
from recurformer.render.tables.table import Line, Table
from recurformer.results.cells import CONTRIBUTION, contributions
from recurformer.results.frames import groups, models_in_order, records, require
from recurformer.results.words import LEGEND, MARKS, NOT_RUN, Verdicts, beside, estimated

TOKENS = {"first": "first", "other": "non-first"}
WORDS = {-1: "less", 0: "as much", 1: "more"}
"""Sign of first minus other -> how the first token compares."""


def printed_contributions() -> pd.DataFrame:
    """What the paper printed: model, norm ("l1", "l2"), tokens ("first", "other"), paper, paper_low, paper_high."""
    cells = [cell for cell in CELLS if cell.table == 5]
    rows = [
        (mean.model, mean.quantity.removesuffix("_mean"), mean.part, mean.value, *spread.bounds)
        for mean, spread in zip(cells[::2], cells[1::2], strict=True)
    ]
    return pd.DataFrame(rows, columns=[*CONTRIBUTION, "paper", "paper_low", "paper_high"])


def _norm_text(rows: pd.DataFrame, norm: str) -> str:
    row = rows[rows["norm"] == norm].iloc[0]
    ours = estimated(row["ours"], row["mean_low"], row["mean_high"], 4)
    paper = estimated(row["paper"], row["paper_low"], row["paper_high"], 4)
    return beside(ours, paper, " ".join(MARKS[mark] for mark in row[["mean_verdict", "interval_verdict"]] if mark))


def _direction(rows: pd.DataFrame) -> str:
    """Whether the first token of one model contributes more or less than the others, by the means under each norm."""
    means = rows.pivot(index="norm", columns="tokens", values="ours").sort_index()
    words = {norm: WORDS[int(np.sign(row["first"] - row["other"]))] for norm, row in means.iterrows()}
    if len(set(words.values())) == 1:
        return f"{next(iter(words.values()))} under both norms"
    return ", ".join(f"{word} under {str(norm).upper()}" for norm, word in words.items())


def table5(contribution: pd.DataFrame, verdicts: Verdicts) -> Table:
    """Table 5: mean contributions (attention weight times norm of the value) and both readings of their interval.

    Raises:
        ValueError: two rows for one cell.
    """
    require(contribution, "contribution")
    frame = contributions(contribution).merge(printed_contributions(), on=CONTRIBUTION, how="outer", sort=False)
    frame["difference"] = frame["ours"] - frame["paper"]
    frame["status"] = np.where(frame["ours"].notna(), "measured", NOT_RUN)
    frame["samples"] = frame["samples"].astype("Int64")
    models = list(dict.fromkeys([*BACKBONE_LABELS, *models_in_order(contribution)]))
    for part in ("mean", "interval"):
        claims = [f"table5/{row.model}/{row.tokens}/{row.norm}_{part}" for row in records(frame)]
        frame[f"{part}_verdict"] = [verdicts.get(claim, "") for claim in claims]
    order = {name: place for place, name in enumerate([*models, "l1", "l2", *TOKENS])}
    frame = frame.sort_values(CONTRIBUTION, key=lambda column: column.map(order), ignore_index=True)
    lines: list[Line] = [
        {
            "Model": label(model), "Tokens": TOKENS[tokens],
            **{f"{norm.upper()} contribution": _norm_text(rows, norm) for norm in ("l1", "l2")},
        }
        for (model, tokens), rows in groups(frame, ["model", "tokens"])
    ]  # fmt: skip
    measured = frame[frame["status"] == "measured"]
    by_model = groups(measured, "model")
    tests = "; ".join(
        f"{label(model)} p = {rows['p_value'].max():.2g} ({int(rows['samples'].max())} windows)"
        for model, rows in by_model
    )
    directions = "; ".join(
        f"{label(model)}: the first token contributes {_direction(rows)}" for model, rows in by_model
    )
    notes = [
        "Contribution of a token to a query: attention weight times the L1 or L2 norm of its value vector. Every query "
        "t ≥ 1 compares the first token (0) with the mean over the tokens 1 to t; both are averaged over the queries, "
        "heads and layers, so that uniform attention over equal values gives the same to both.",
        "A cell: ours with the 95 % confidence interval of the mean over windows, the paper's with its interval in "
        "parentheses, the verdicts on the printed mean and on the printed interval.",
        "CSV: also the spread, mean ± 1.96 standard deviations over windows, layers and heads. A contribution cannot "
        "be negative. The paper's intervals reach below zero, as spreads do and confidence intervals of such means do "
        "not.",
        f"{directions}, the paper's claim is that it contributes less.",
        f"Paired t-test, first against other tokens, the larger p-value of the two norms: {tests}.",
        LEGEND,
    ]
    if not_run := [label(model) for model in models if model not in set(measured["model"])]:
        notes.append(
            f"{', '.join(not_run)}: not-run: its published weights were not profiled in this study (config/paper.yaml)."
        )
    title = "Contributions of the first token and of the other tokens: ours, the paper's, and the difference"
    return Table("table5", title, frame, lines, notes)
