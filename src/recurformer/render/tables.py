"""The paper's five tables, and the registry of all tables: name -> function of measurement frames.

Parameters are named after the kinds of measurements that they take (`recurformer.results.frames.COLUMNS`); one with a
default may be missing. Besides these, `verdicts` are those of the paper's cells, and `recorded` is what recordings keep
of GPUs. All raise ValueError for a kind without rows or without one of its columns.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from recurformer.paper import (
    BACKBONE_LABELS,
    CELLS,
    EXPONENTS,
    MIXER_HEADINGS,
    PYRAMIDINFER_MINIMUM,
    PYRAMIDINFER_RATIO,
    QUANTITY_HEADINGS,
    TABLE2_BETAS,
    PrintedCell,
    label,
)
from recurformer.render.table import Line, Table
from recurformer.render.tables_studies import lm_eval_table, recovery_table
from recurformer.results.cells import (
    AT_LEAST,
    CONTRIBUTION,
    PYRAMIDINFER,
    QUANTITIES,
    SETTINGS,
    Key,
    Row,
    Value,
    baseline_scores,
    cache_values,
    contributions,
    exponents,
    longest_values,
    perplexities,
    pyramidinfer_values,
    quality_values,
    replacing,
    settings_of,
    without_weak,
)
from recurformer.results.frames import groups, models_in_order, records, require, require_values, runs_of
from recurformer.results.learned import LEARNED
from recurformer.results.words import LEGEND, MARKS, NOT_RUN, NOTHING, Verdicts, beside, counted, estimated, number


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


DECIMALS = {"l_m": 0, "h_gq": 3, "cs_10k": 4, "cs_60k": 4}
REASONS = {
    "l_m": "not measured nor computed in this study",
    "h_gq": "no HashHop run in this study: it needs the published weights and a GPU (config/paper.yaml)",
    "cs_10k": "caches of 10,240 tokens were not counted in this study",
    "cs_60k": "caches of 61,440 tokens were not counted in this study",
}
ORIGINS = {"model": " by model", "computed": " computed", AT_LEAST: " or more"}
"""Status of a value -> words beside it: it was not measured, or not to its end."""
HEADINGS = {"paper": "appendix layout", "official": "official layout", "head": "unit head"}
"""Settings that a recording of a card names by other words."""
GPU_KINDS = ("cache_peak", "hashhop", "baseline", "memory")
"""What Tables 2 and 4 take from a recording."""
Recorded = Mapping[str, Mapping[str, pd.DataFrame]]
"""Name of a card -> kind of measurement -> rows that a recording keeps of it."""


def _card_values(frames: Mapping[str, pd.DataFrame]) -> dict[Key, Value]:
    """What was measured on a card; not what is counted or computed without one, nor h_gq without its baseline."""
    values: dict[Key, Value] = {}
    if "cache_peak" in frames:
        values |= cache_values(require(frames["cache_peak"], "cache_peak").dropna(subset="ratio"), "measured")
    if "memory" in frames:
        memory = require(frames["memory"], "memory")
        values |= longest_values(memory[memory["source"] == "measured"])
    if "hashhop" in frames and "baseline" in frames:
        scores = quality_values(require(frames["hashhop"], "hashhop"))
        values |= without_weak(scores, baseline_scores(frames["baseline"], scores))
    return values


def recorded_values(recorded: Recorded) -> dict[Key, Value]:
    """The values of every card under settings that carry its name.

    Raises:
        ValueError: a recording lacks columns, or h_gq before conversion of a model whose h_gq it has.
    """
    values = {}
    for card, frames in recorded.items():
        for (row, quantity, setting), value in _card_values(frames).items():
            usual = setting == SETTINGS[quantity][0]
            values[row, quantity, card if usual else f"{card}, {HEADINGS.get(setting, setting)}"] = value
    return values


def long_frame(
    rows: Iterable[Row],
    values: Mapping[Key, Value],
    printed: Mapping[tuple[Row, str], PrintedCell],
    verdicts: Verdicts,
) -> pd.DataFrame:
    """One row for each line, quantity and setting.

    Returns:
        model, method, beta, quantity, setting, compared (bool: this setting stands beside the paper's value), ours,
        low, high, samples, paper, printed (text), difference, status (where ours comes from: "counted", "measured",
        measured to be "at least" that, "computed" by a formula or by a "model"; "not-run" where the paper has a value
        and we have none, and where ours is withheld for a weak baseline; else ""), claim (id in the ledger), verdict
        (its verdict there), runs (ids of the runs behind ours).
    """
    entries = []
    for row, quantity in product(rows, QUANTITIES):
        cell = printed.get((row, quantity))
        paper = (cell.value, cell.printed) if cell else (math.nan, "")
        claim = (cell.id, verdicts.get(cell.id, "")) if cell else ("", "")
        for place, setting in enumerate(settings_of(values, row, quantity)):
            value = values.get((row, quantity, setting), Value(math.nan, source=""))
            status = value.source or (NOT_RUN if cell else "")
            ours = (value.ours, value.low, value.high, value.samples)
            entries.append((*astuple(row), quantity, setting, place == 0, *ours, *paper, status, *claim, value.runs))
    frame = pd.DataFrame(
        entries,
        columns=[
            "model", "method", "beta", "quantity", "setting", "compared", "ours", "low", "high", "samples", "paper",
            "printed", "status", "claim", "verdict", "runs",
        ],
    ).astype({"beta": float, "samples": "Int64"})  # fmt: skip
    frame.insert(list(frame).index("status"), "difference", frame["ours"] - frame["paper"])
    return frame


def _ours_text(entry: Any) -> str:
    if entry.status in {"", NOT_RUN}:
        return entry.status or NOTHING
    text = estimated(entry.ours, entry.low, entry.high, DECIMALS[entry.quantity])
    return text + ORIGINS.get(entry.status, "")


def lines_of(long: pd.DataFrame) -> list[dict[str, str]]:
    """The lines as text: of every quantity ours beside the paper's, and what recordings of cards have of it."""
    known = long[~long["status"].isin(["", NOT_RUN])]
    cards = {
        quantity: [name for name in known.loc[known["quantity"] == quantity, "setting"].unique() if name not in usual]
        for quantity, usual in SETTINGS.items()
    }
    lines = []
    for (model, method, beta), rows in groups(long, ["model", "method", "beta"]):
        line = {"Model": label(model), "Method": method, "β": number(beta, 2)}
        for quantity in QUANTITIES:
            entries = {entry.setting: entry for entry in records(rows[rows["quantity"] == quantity])}
            first = next(entry for entry in entries.values() if entry.compared)
            line[quantity] = beside(_ours_text(first), first.printed or NOTHING, MARKS.get(first.verdict, NOTHING))
            for card in cards[quantity]:
                line[f"{quantity}, {card}"] = _ours_text(entries[card]) if card in entries else NOTHING
        lines.append(line)
    return lines


def _h_gq_notes(scores: Mapping[str, float]) -> list[str]:
    """h_gq before conversion: of the models that have learned the task, and of each whose h_gq is withheld."""
    texts = {model: number(score, DECIMALS["h_gq"]) for model, score in scores.items()}
    learned = ", ".join(f"{texts[model]} ({label(model)})" for model, score in scores.items() if score >= LEARNED)
    passed = [f"Without conversion h_gq is {learned}; a comparison needs {LEARNED:g}."] if learned else []
    return passed + [
        f"h_gq of {label(model)}: not-run: the unconverted model reaches only {texts[model]} of the {LEARNED:g} "
        "that a comparison needs."
        for model, score in scores.items()
        if score < LEARNED
    ]


def _memory_model_note(memory: pd.DataFrame) -> list[str]:
    """How far the memory model is from what was measured."""
    if "error" not in memory or memory["error"].isna().all():
        return []
    low, high = (number(100 * error, 1, signed=True) for error in memory["error"].agg(["min", "max"]))
    return [f"The memory model's error where l_m was measured: {low} % to {high} %."]


def notes(long: pd.DataFrame, cache: pd.DataFrame, memory: pd.DataFrame, scores: Mapping[str, float]) -> list[str]:
    """How the values came about, and why those are missing that are; `scores`: h_gq before conversion by model."""
    card = ", ".join(f"{size / 2**30:.4g}" for size in sorted(memory["memory_bytes"].unique()))
    found = [
        "A cell: ours, the paper's value in parentheses, the verdict. The CSV file also has the differences and the "
        "values under other settings, each named below.",
        f"l_m: longest prompt in one forward pass in {card} GiB; “by model”: computed by the memory model, not "
        "measured on a card. CSV: in chunks, which the paper did not do (chunked), and where the cache alone fills the "
        "memory that the weights leave (limit).",
        "h_gq: leading hashes reproduced exactly over h_p, mean over the samples of all seeds with its 95 % interval. "
        "The public generator makes the prompts (official): several full chains. CSV: the layout of the paper's "
        "appendix (paper), one chain among lone pairs.",
        "cs_10k, cs_60k: bytes in the cache objects at 10,240 and 61,440 tokens over those of the original model. "
        "Heads are replaced by whole query groups (kv_group). CSV: one by one (head), which frees a key-value head "
        "only when all its query heads are replaced.",
        *_memory_model_note(memory),
        *_h_gq_notes(scores),
        LEGEND,
    ]
    if "ranking" in cache and (random := cache.loc[cache["ranking"] == "random", "model"].unique()).size:
        found.append(
            f"Heads of {', '.join(map(label, random))} ranked at random (shapes without weights): this changes "
            "nothing under unit kv_group."
        )
    withheld = (long["quantity"] == "h_gq") & (long["model"].map(scores) < LEARNED)
    missing = long[(long["status"] == NOT_RUN) & long["compared"] & ~withheld]
    for quantity, rows in missing[missing["method"] != PYRAMIDINFER].groupby("quantity", sort=False):
        models = ", ".join(label(model) for model in BACKBONE_LABELS if model in set(rows["model"]))
        found.append(f"{quantity} of {models}: not-run: {REASONS[str(quantity)]}.")
    return found


def _wide(long: pd.DataFrame) -> pd.DataFrame:
    """One row a line, for the CSV file: <quantity>_ours, _paper, _difference, _status, _claim, _verdict, _runs, and
    _ours_<other setting>.
    """
    lines = []
    for (model, method, beta), rows in groups(long, ["model", "method", "beta"]):
        line: dict[str, object] = {"model": model, "method": method, "beta": beta}
        for entry in records(rows):
            if not entry.compared:
                line[f"{entry.quantity}_ours_{entry.setting}"] = entry.ours
                continue
            for part in ("ours", "paper", "difference", "status", "claim", "verdict", "runs"):
                line[f"{entry.quantity}_{part}"] = getattr(entry, part)
            if entry.quantity == "h_gq":
                line.update({f"h_gq_{part}": getattr(entry, part) for part in ("low", "high", "samples", "setting")})
        lines.append(line)
    return pd.DataFrame(lines)


def _build(
    table: int,
    shown: Callable[[Row], bool],
    verdicts: Verdicts,
    recorded: Recorded,
    cache: pd.DataFrame,
    hashhop: pd.DataFrame,
    baseline: pd.DataFrame,
    memory: pd.DataFrame,
    pyramidinfer: pd.DataFrame | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """The long frame of table number `table`, and its notes; `shown` says which lines it has beside the paper's."""
    for kind, frame in (("cache", cache), ("hashhop", hashhop), ("memory", memory)):
        require(frame, kind)
    measured = {**cache_values(cache), **quality_values(hashhop), **longest_values(memory)}
    scores = baseline_scores(baseline, measured)
    values = without_weak(measured, scores) | recorded_values(recorded)
    if pyramidinfer is not None:
        values |= pyramidinfer_values(pyramidinfer)
    printed = {(Row(cell.model, cell.method, cell.beta), cell.quantity): cell for cell in CELLS if cell.table == table}
    lines = {row for row, _ in printed} | {row for row, *_ in values if shown(row)}
    models = list(dict.fromkeys([*BACKBONE_LABELS, *(row.model for row, *_ in values)]))
    rows = sorted(lines, key=lambda row: (models.index(row.model), math.inf if row.beta is None else row.beta))
    long = long_frame(rows, values, printed, verdicts)
    cards = [
        f"{card}: recorded on this card by another study. Its caches are those of models with random weights in "
        "bfloat16, its h_gq that of models which that study trained."
        for card in recorded
    ]
    return long, [*notes(long, cache, memory, scores), *cards]


def table2(
    cache: pd.DataFrame,
    hashhop: pd.DataFrame,
    baseline: pd.DataFrame,
    memory: pd.DataFrame,
    pyramidinfer: pd.DataFrame,
    verdicts: Verdicts,
    recorded: Recorded,
) -> Table:
    """Table 2: every line of the paper's, then the study's other models at the shares of heads that it uses.

    `baseline` is HashHop before conversion: h_gq of a model that scores too little there is "not-run".

    Raises:
        ValueError: no cache of 10,240 or 61,440 tokens, two caches for one cell, or a model with h_gq that has none
            before conversion.
    """
    shares = {0.0, *TABLE2_BETAS.values()}

    def shown(row: Row) -> bool:
        return row.beta is None or (row.model not in BACKBONE_LABELS and row.beta in shares)

    long, said = _build(2, shown, verdicts, recorded, cache, hashhop, baseline, memory, pyramidinfer)
    said.append(
        "PyramidInfer: keys and values that its cache keeps of a random prompt in the paper's setting "
        f"({PYRAMIDINFER_RATIO:g} of the tokens kept from layer to layer, {PYRAMIDINFER_MINIMUM} at least). The rest: "
        "not-run: the method runs in small models only, in the ablations."
    )
    if others := ", ".join(label(model) for model in long["model"].unique() if model not in BACKBONE_LABELS):
        said.append(f"{others}: not in the paper, shown at the shares that its Table 2 uses.")
    title = (
        "Longest input, generation quality and cache size by optimisation method: ours, the paper's, and the difference"
    )
    return Table("table2", title, _wide(long), lines_of(long), said)


def table4(
    cache: pd.DataFrame,
    hashhop: pd.DataFrame,
    baseline: pd.DataFrame,
    memory: pd.DataFrame,
    verdicts: Verdicts,
    recorded: Recorded,
) -> Table:
    """Table 4: every model at every beta, the paper's and the study's; the CSV file is in long format.

    Arguments and errors are those of `table2`.
    """
    long, said = _build(4, lambda _: True, verdicts, recorded, cache, hashhop, baseline, memory)
    lines = [{heading: text for heading, text in line.items() if heading != "Method"} for line in lines_of(long)]
    title = "Longest input, generation quality and cache size at every share β of replaced heads"
    return Table("table4", title, long, lines, said)


SPLIT = "validation"
MOMENTS = ("before", "converted", "trained")
"""Before anything was done; converted but not trained; after continual training, which is the paper's stage."""


def _printed_perplexities(verdicts: Verdicts) -> pd.DataFrame:
    """The paper's six values, each at the stage "trained", with their verdicts."""
    cells = [
        (cell.model, cell.beta, "trained", cell.value, cell.printed, cell.id, verdicts.get(cell.id, ""))
        for cell in CELLS
        if cell.table == 3
    ]
    return pd.DataFrame(cells, columns=["model", "beta", "stage", "paper", "printed", "claim", "verdict"])


def _over_original(frame: pd.DataFrame, column: str) -> pd.Series:
    """Each value over that of the original model at the same stage: the cost of the conversion, whatever the corpus."""
    original = frame[frame["beta"] == 0].set_index(["model", "stage"])[column]
    return frame[column] / original.reindex(pd.MultiIndex.from_frame(frame[["model", "stage"]])).to_numpy()


def _perplexity_line(model: str, beta: float, rows: pd.DataFrame) -> Line:
    """One line of text from the stages of one model at one beta."""
    stages = rows.set_index("stage").reindex(MOMENTS).to_dict("index")
    before, after = stages["converted" if beta else "before"], stages["trained"]
    printed = after["printed"] if pd.notna(after["paper"]) else NOTHING
    ours, paper = (number(after[f"{whose}_over_original"], 3) for whose in ("ours", "paper"))
    return {
        "Model": label(model),
        "Method": replacing(model, beta).method,
        "β": number(beta, 2),
        "before training": number(before["ours"], 3),
        "after training": beside(number(after["ours"], 3), printed, MARKS.get(after["verdict"], NOTHING)),
        "over original": beside(ours, paper, "").strip(),
    }


def table3(perplexity: pd.DataFrame, verdicts: Verdicts) -> Table:
    """Table 3: perplexity on held-out articles, before and after the same training of original and RecurFormer.

    Raises:
        ValueError: no row of the split "validation", which alone counts.
    """
    require(perplexity, "perplexity")
    require_values(perplexity, "perplexity", "split", [SPLIT])
    held_out = perplexity[perplexity["split"] == SPLIT].round({"beta": 6})
    frame = perplexities(held_out).merge(
        _printed_perplexities(verdicts), on=["model", "beta", "stage"], how="outer", sort=False
    )
    frame["difference"] = frame["ours"] - frame["paper"]
    frame["status"] = np.where(frame["ours"].notna(), "measured", NOT_RUN)
    for column in ("ours", "paper"):
        frame[f"{column}_over_original"] = _over_original(frame, column)
    frame[["seeds", "tokens"]] = frame[["seeds", "tokens"]].astype("Int64")
    models = list(dict.fromkeys([*BACKBONE_LABELS, *models_in_order(perplexity)]))
    order = {name: place for place, name in enumerate([*models, *MOMENTS])}
    frame = frame.sort_values(["model", "beta", "stage"], key=lambda column: column.replace(order), ignore_index=True)
    lines = [_perplexity_line(model, beta, rows) for (model, beta), rows in groups(frame, ["model", "beta"])]
    not_run = [label(model) for model in BACKBONE_LABELS if model not in set(held_out["model"])]
    notes = [
        "A cell: ours, the paper's value in parentheses, the verdict. “Before training”: right after the conversion.",
        "Perplexity of the causal language model on held-out Wikipedia articles: exp of the mean negative "
        "log-likelihood of all predicted tokens. Original and RecurFormer are trained likewise: same articles, same "
        "steps.",
        f"Ours: {int(frame['tokens'].max()):,} tokens, mean over {counted(int(frame['seeds'].max()), 'seed')}. "
        "Perplexities of different tokenizers and articles cannot be compared. The cost of the conversion can: “over "
        "original” is the perplexity over that of the original model after the same training.",
        LEGEND,
    ]
    if not_run:
        notes.append(
            f"{', '.join(not_run)}: not-run: no continual training of it in this study; it needs the published "
            "weights and a GPU (config/paper.yaml)."
        )
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


TABLES: dict[str, Callable[..., Table]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "lm_eval": lm_eval_table,
    "recovery": recovery_table,
}
