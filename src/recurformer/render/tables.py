"""The paper's five tables, and the registry of all tables: name -> function of measurement frames.

Parameters are named after the kinds of measurements that they take (`recurformer.results.frames.COLUMNS`); one with a
default may be missing. Besides these, `verdicts` are those of the paper's cells, and `recorded` is what recordings keep
of GPUs. All raise ValueError for a kind without rows or without one of its columns.
"""

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from recurformer.paper import (
    BACKBONE_LABELS,
    CELLS,
    EXPONENTS,
    MIXER_HEADINGS,
    QUANTITY_HEADINGS,
    label,
)
from recurformer.render.table import Line, Table
from recurformer.render.tables_methods import printed_cells, table2, table4, verdict_of
from recurformer.render.tables_studies import frontier_table, lm_eval_table, long_inputs_table, recovery_table
from recurformer.results.cells import (
    CONTRIBUTION,
    contribution_values,
    exponents,
    over_original,
    perplexity_values,
)
from recurformer.results.frames import groups, models_shown, records, require, require_values, runs_of
from recurformer.results.words import LEGEND, NOT_RUN, NOTHING, Verdict, Verdicts, beside, counted, estimated, number


def table1(complexity: pd.DataFrame, verdicts: Verdicts) -> Table:
    """Table 1: each O(.) beside the exponent of a log-log fit of bytes over length.

    Raises:
        ValueError: fewer than two lengths.
    """
    require(complexity, "complexity")
    rows = []
    for cell in (cell for cell in CELLS if cell.table == 1):
        place = {"phase": cell.part, "mixer": cell.method, "quantity": cell.quantity}
        chosen = complexity[(complexity[list(place)] == list(place.values())).all(axis=1)]
        rows.append(
            {
                **place, "paper": cell.printed, "paper_exponent": EXPONENTS[cell.part, cell.method, cell.quantity],
                **exponents(chosen), "claim": cell.id, **verdicts.get(cell.id, Verdict())._asdict(),
                "runs": runs_of(chosen),
            }
        )  # fmt: skip
    frame = pd.DataFrame(rows)
    frame["difference"] = frame["exponent"] - frame["paper_exponent"]
    lines = [
        {
            "Phase": row.phase.capitalize(), "Mixer": MIXER_HEADINGS[row.mixer],
            "Quantity": QUANTITY_HEADINGS[row.quantity], "Paper": row.paper,
            "Exponent": beside(number(row.exponent, 2), number(row.paper_exponent, 0), verdict_of(row).mark),
        }
        for row in records(frame)
    ]  # fmt: skip
    notes = (
        "Paper: as printed; l_p is the length of the input, l_g that of the generated text, d the model dimension. "
        "The exponent in parentheses is the highest power of a length in it.",
        "Ours: slope of log(bytes) over log(length), least squares over the lengths "
        f"{', '.join(f'{length:,}' for length in sorted(complexity['length'].unique()))}; d is "
        f"{', '.join(f'{width:,}' for width in complexity['width'].unique())}. CSV: also between the two "
        "longest of them, where lower-order terms weigh least.",
        LEGEND,
    )
    title = "Growth of cache peak and cache size with the length, printed and measured"
    return Table("table1", title, frame, lines, notes)


def beside_printed(ours: pd.DataFrame, printed: pd.DataFrame, keys: list[str], order: Iterable[str]) -> pd.DataFrame:
    """Measured values (`ours`) beside printed ones (`paper`), with their difference and their status.

    Lines stand in the order of the models, then of `order`, which lists the values of the other keys; numbers rise.
    """
    frame = ours.merge(printed, on=keys, how="outer", sort=False)
    frame["difference"] = frame["ours"] - frame["paper"]
    frame["status"] = np.where(frame["ours"].notna(), "measured", NOT_RUN)
    places = {name: place for place, name in enumerate([*models_shown(ours), *order])}
    return frame.sort_values(keys, key=lambda column: column.map(places).fillna(column), ignore_index=True)


def _not_run_note(measured: pd.DataFrame, why: str) -> list[str]:
    """Which of the paper's models were not measured."""
    absent = [label(model) for model in BACKBONE_LABELS if model not in set(measured["model"])]
    return [f"{', '.join(absent)}: not-run: {why} (config/paper.yaml)."] if absent else []


MOMENTS = ("before", "converted", "trained")
"""Before anything was done; converted but not trained; after continual training, which is the paper's stage."""


def table3(perplexity: pd.DataFrame, verdicts: Verdicts) -> Table:
    """Table 3: perplexity on held-out articles, before and after the same training of original and RecurFormer.

    Raises:
        ValueError: no row of the split "validation", which alone counts.
    """
    require(perplexity, "perplexity")
    require_values(perplexity, "perplexity", "split", ["validation"])
    held_out = perplexity[perplexity["split"] == "validation"].round({"beta": 6})
    printed = printed_cells(3, verdicts).drop(columns=["method", "quantity"]).assign(stage="trained")
    frame = beside_printed(perplexity_values(held_out), printed, ["model", "beta", "stage"], MOMENTS)
    for column in ("ours", "paper"):
        values = frame.set_index(["model", "beta", "stage"])[column]
        frame[f"{column}_over_original"] = over_original(values).to_numpy()
    frame[["seeds", "tokens"]] = frame[["seeds", "tokens"]].astype("Int64")
    lines: list[Line] = []
    for (model, beta), rows in groups(frame, ["model", "beta"]):
        stages = rows.set_index("stage").reindex(MOMENTS).to_dict("index")
        before, after = stages["converted" if beta else "before"], stages["trained"]
        printed_value = after["printed"] if pd.notna(after["paper"]) else NOTHING
        ours, paper = (number(after[f"{whose}_over_original"], 3) for whose in ("ours", "paper"))
        verdict = Verdict(*(after[name] for name in Verdict._fields))
        lines.append({
            "Model": label(model),
            "Method": "RecurFormer" if beta else "Original Model",
            "β": number(beta, 2),
            "before training": number(before["ours"], 3),
            "after training": beside(number(after["ours"], 3), printed_value, verdict.mark),
            "over original": beside(ours, paper, "").strip(),
        })  # fmt: skip
    notes = [
        "A cell: ours, the paper's value in parentheses, the verdict. “Before training”: right after the conversion.",
        "Perplexity of the causal language model on held-out Wikipedia articles: exp of the mean negative "
        "log-likelihood of all predicted tokens. Original and RecurFormer are trained likewise: same articles, same "
        "steps.",
        f"Ours: {int(frame['tokens'].max()):,} tokens, mean over {counted(int(frame['seeds'].max()), 'seed')}. "
        "Perplexities of different tokenizers and articles cannot be compared. The cost of the conversion can: “over "
        "original” is the perplexity over that of the original model after the same training.",
        LEGEND,
        *_not_run_note(held_out, "no continual training of it in this study; it needs the published weights and a GPU"),
    ]
    title = "Perplexity on held-out Wikipedia articles, original and RecurFormer"
    return Table("table3", title, frame, lines, notes)


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
    frame = beside_printed(
        contribution_values(contribution), printed_contributions(), CONTRIBUTION, ["l1", "l2", *TOKENS]
    )
    frame["samples"] = frame["samples"].astype("Int64")
    for part in ("mean", "interval"):
        claims = [f"table5/{row.model}/{row.tokens}/{row.norm}_{part}" for row in records(frame)]
        judged = pd.DataFrame([verdicts.get(claim, Verdict()) for claim in claims], columns=Verdict._fields)
        frame = frame.join(judged.add_prefix(f"{part}_"))
    lines: list[Line] = []
    for (model, tokens), rows in groups(frame, ["model", "tokens"]):
        line = {"Model": label(model), "Tokens": TOKENS[tokens]}
        for norm in ("l1", "l2"):
            row = rows[rows["norm"] == norm].iloc[0]
            shown = estimated(row["ours"], row["mean_low"], row["mean_high"], 4)
            paper = estimated(row["paper"], row["paper_low"], row["paper_high"], 4)
            both = (Verdict(*(row[f"{part}_{name}"] for name in Verdict._fields)) for part in ("mean", "interval"))
            marks = " ".join(verdict.mark for verdict in both if verdict.verdict)
            line[f"{norm.upper()} contribution"] = beside(shown, paper, marks)
        lines.append(line)
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
        *_not_run_note(measured, "its published weights were not profiled in this study"),
    ]
    title = "Contributions of the first token and of the other tokens: ours, the paper's, and the difference"
    return Table("table5", title, frame, lines, notes)


TABLES: dict[str, Callable[..., Table]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "lm_eval": lm_eval_table,
    "recovery": recovery_table,
    "long_inputs": long_inputs_table,
    "frontier": frontier_table,
}
