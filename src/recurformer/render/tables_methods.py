"""Tables 2 and 4: longest input, generation quality and cache size, ours beside the paper's.

Table 2 goes by optimisation method, Table 4 by the fraction of replaced heads.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from recurformer.paper import (
    BACKBONE_LABELS,
    PYRAMIDINFER_MINIMUM,
    PYRAMIDINFER_RATIO,
    QUANTITIES,
    TABLE2_BETAS,
    label,
)
from recurformer.paper import CELLS as PRINTED
from recurformer.render.table import Table
from recurformer.results.cells import (
    AT_LEAST,
    CELL,
    CELLS,
    LAYOUTS,
    LINE,
    SETTINGS,
    baseline_scores,
    cache_values,
    longest_values,
    pyramidinfer_quality,
    pyramidinfer_values,
    quality_values,
    settings_of,
    with_undecided,
)
from recurformer.results.frames import groups, models_shown, records, require
from recurformer.results.learned import LEARNED, NEAR_PRINTED, why_h_gq_undecided
from recurformer.results.words import (
    LEGEND,
    MARKS,
    NOT_RUN,
    NOTHING,
    UNDECIDED,
    Verdict,
    Verdicts,
    beside,
    estimated,
    number,
)

DECIMALS = {"l_m": 0, "h_gq": 3, "cs_10k": 4, "cs_60k": 4}
REASONS = {
    "l_m": "not measured in this study: it needs one GPU of 80 GB, and no weights (config/gpu.yaml)",
    "h_gq": "no HashHop run of it in this study: it needs the published weights and a GPU (config/paper.yaml)",
    "cs_10k": "its cache of 10,240 tokens was not counted in this study",
    "cs_60k": "its cache of 61,440 tokens was not counted in this study",
}
COMPUTED = "model"
"""Status of what the memory model computes: columns of their own keep it apart from what is measured."""
BY_MODEL = {"l_m by model": "one_shot", "l_m by model, all logits": "all_logits"}
"""Such a column -> the setting that it shows."""
HEADINGS = {**LAYOUTS, "head": "unit head"}
"""Settings that a recording of a GPU names by other words."""
GPU_KINDS = ("cache_peak", "hashhop", "baseline", "memory")
"""What Tables 2 and 4 take from a recording."""
Recorded = Mapping[str, Mapping[str, pd.DataFrame]]
"""Name of a GPU -> kind of measurement -> rows that a recording keeps of it."""


def _joined(cells: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Cells one below the other; what is empty has no types to speak of."""
    return pd.concat([some for some in cells if len(some)] or [pd.DataFrame(columns=CELLS)], ignore_index=True)


def recorded_values(recorded: Recorded) -> pd.DataFrame:
    """What was measured on every GPU, under settings that carry its name; not what is counted or computed without one,
    nor h_gq without its baseline.

    Raises:
        ValueError: a recording lacks columns, or h_gq before conversion of a model whose h_gq it has.
    """
    values = []
    for gpu, frames in recorded.items():
        cells = []
        if "cache_peak" in frames:
            peaks = require(frames["cache_peak"], "cache_peak").dropna(subset="ratio")
            cells.append(cache_values(peaks, "measured"))
        if "memory" in frames:
            memory = require(frames["memory"], "memory")
            cells.append(longest_values(memory[memory["source"] == "measured"]))
        if "hashhop" in frames and "baseline" in frames:
            scores = quality_values(require(frames["hashhop"], "hashhop"))
            cells.append(with_undecided(scores, baseline_scores(frames["baseline"], scores)))
        of_gpu = _joined(cells)
        names = [
            gpu if setting == SETTINGS[quantity][0] else f"{gpu}, {HEADINGS.get(setting, setting)}"
            for quantity, setting in zip(of_gpu["quantity"], of_gpu["setting"], strict=True)
        ]
        values.append(of_gpu.assign(setting=names))
    return _joined(values)


def printed_cells(table: int, verdicts: Verdicts) -> pd.DataFrame:
    """The printed cells of one of the tables, each with its claim and the verdict on it."""
    columns = [*LINE, "quantity", "value", "printed", "id"]
    cells = [[getattr(cell, column) for column in columns] for cell in PRINTED if cell.table == table]
    frame = pd.DataFrame(cells, columns=columns).rename(columns={"value": "paper", "id": "claim"})
    judged = pd.DataFrame([verdicts.get(claim, Verdict()) for claim in frame["claim"]], columns=Verdict._fields)
    return frame.join(judged).astype({"beta": float})


def verdict_of(row: Any) -> Verdict:
    """The verdict in a row of a frame."""
    return Verdict(*(getattr(row, name) for name in Verdict._fields))


def long_frame(lines: pd.DataFrame, cells: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """One row for each line, quantity and setting.

    Returns:
        model, method, beta, quantity, setting, compared (bool: this setting stands beside the paper's value), ours,
        low, high, samples, paper, printed (text), difference, status (where ours comes from: "counted", "measured",
        measured to be "at least" that, "computed" by a formula or by a "model"; "undecided": measured, but its original
        cannot be compared with; "not-run" where the paper has a value and we have none; else ""), claim (id in the
        ledger), verdict, verdict_recording, verdict_runs (see `Verdict`), runs (ids of the runs behind ours).
    """
    places = []
    for model, method, beta in lines.itertuples(index=False):
        of_model = cells[(cells["model"] == model) & (cells["beta"].isna() == pd.isna(beta))]
        for quantity in QUANTITIES:
            settings = enumerate(settings_of(of_model, quantity))
            places += [(model, method, beta, quantity, setting, place == 0) for place, setting in settings]
    frame = pd.DataFrame(places, columns=[*CELL, "compared"]).merge(cells, how="left", on=CELL)
    frame = frame.merge(printed, how="left", on=[*LINE, "quantity"])
    missing = frame["claim"].notna().map({True: NOT_RUN, False: ""})
    texts = {name: frame[name].fillna("") for name in ("printed", "claim", *Verdict._fields, "runs")}
    frame = frame.assign(status=frame["status"].fillna(missing), difference=frame["ours"] - frame["paper"], **texts)
    columns = ["ours", "low", "high", "samples", "paper", "printed", "difference", "status", "claim"]
    return frame[[*CELL, "compared", *columns, *Verdict._fields, "runs"]].astype({"samples": "Int64"})


def _ours_text(entry: Any) -> str:
    if entry.status in {"", NOT_RUN}:
        return entry.status or NOTHING
    text = estimated(entry.ours, entry.low, entry.high, DECIMALS[entry.quantity])
    return f"{text} or more" if entry.status == AT_LEAST else text


def _shown(entry: Any) -> str:
    """Ours; where it is compared with the paper's, this and the verdict; a mark where it was measured but decides
    nothing.
    """
    ours = NOTHING if entry.status == COMPUTED else _ours_text(entry)
    if entry.compared and entry.printed:
        return beside(ours, entry.printed, verdict_of(entry).mark)
    return f"{ours} {MARKS[UNDECIDED]}" if entry.status == UNDECIDED else ours


def lines_of(long: pd.DataFrame) -> list[dict[str, str]]:
    """The lines as text: of every quantity ours beside the paper's, of h_gq in both layouts; and what recordings of
    GPUs have of it.
    """
    known = long[~long["status"].isin(["", NOT_RUN])]
    gpus = {
        quantity: [name for name in known.loc[known["quantity"] == quantity, "setting"].unique() if name not in usual]
        for quantity, usual in SETTINGS.items()
    }
    lines = []
    for (model, method, beta), rows in groups(long, ["model", "method", "beta"]):
        line = {"Model": label(model), "Method": method, "β": number(beta, 2)}
        for quantity in QUANTITIES:
            entries = {entry.setting: entry for entry in records(rows[rows["quantity"] == quantity])}
            compared = next(setting for setting, entry in entries.items() if entry.compared)
            beneath = {f"h_gq, {words}": layout for layout, words in LAYOUTS.items()}
            beneath = beneath if quantity == "h_gq" else {quantity: compared}
            beneath |= {f"{quantity}, {gpu}": gpu for gpu in gpus[quantity]}
            for heading, setting in beneath.items():
                line[heading] = _shown(entries[setting]) if setting in entries else NOTHING
            for heading, setting in BY_MODEL.items() if quantity == "l_m" else ():
                computed = setting in entries and entries[setting].status == COMPUTED
                line[heading] = _ours_text(entries[setting]) if computed else NOTHING
        lines.append(line)
    return lines


def notes(long: pd.DataFrame, cache: pd.DataFrame, memory: pd.DataFrame, scores: Mapping[str, float]) -> list[str]:
    """How the values came about, and why those are missing that are; `scores`: h_gq before conversion by model."""
    gib = ", ".join(f"{size / 2**30:.4g}" for size in sorted(memory["memory_bytes"].unique()))
    texts = [
        "A cell: ours, the paper's value in parentheses, the verdict. The CSV file also has the differences and the "
        "values under other settings, each named below.",
        f"l_m: longest prompt in one forward pass in {gib} GiB, with the logits of its last token. By model: computed, "
        "not measured; and with the logits of every token, then in float32, as the library computed them until its "
        "version 4.45. The paper does not say which it kept. CSV: in chunks, which the paper did not do (chunked); "
        "where the cache alone fills the memory that the weights leave (limit).",
        "h_gq: leading hashes reproduced exactly over h_p, mean over the samples of all seeds. Its 95 % interval is "
        "Wilson's, extended to scores between 0 and 1. Where the means of several trainings (seeds) differ by more "
        "than their samples explain, it is over these trainings: by their variance, with one degree of freedom fewer "
        "than there are trainings; else it is over all samples together. "
        "Judged is the layout of the public generator, which the paper cites (official): several full chains. The "
        "layout of its appendix, one chain among lone pairs, stands beside it and is not judged. It has a shortcut: "
        "only hashes of the chain occur twice, so counting tells them from the others without a lookup.",
        "cs_10k, cs_60k: bytes in the cache objects at 10,240 and 61,440 tokens over those of the original model. "
        "Heads are replaced by whole query groups (kv_group). CSV: one by one (head), which frees a key-value head "
        "only when all its query heads are replaced.",
    ]
    if "error" in memory and memory["error"].notna().any():
        low, high = (number(100 * error, 1, signed=True) for error in memory["error"].agg(["min", "max"]))
        texts.append(f"The memory model's error where l_m was measured: {low} % to {high} %.")
    if scores:
        reached = ", ".join(f"{number(score, DECIMALS['h_gq'])} ({label(model)})" for model, score in scores.items())
        texts.append(
            f"Without conversion h_gq is {reached}; a comparison needs {LEARNED:g}, of the paper's models the printed "
            f"value ± {NEAR_PRINTED:g}."
        )
    reasons = filter(None, (why_h_gq_undecided(model, score) for model, score in scores.items()))
    texts += [f"{MARKS[UNDECIDED]} beside h_gq: {reason}." for reason in reasons]
    texts.append(LEGEND)
    if "ranking" in cache and (random := cache.loc[cache["ranking"] == "random", "model"].unique()).size:
        texts.append(
            f"Heads of {', '.join(map(label, random))} ranked at random (shapes without weights): this changes "
            "nothing under unit kv_group."
        )
    for quantity, rows in groups(long[long["compared"]], "quantity"):
        if lacking := _lacking(rows):
            texts.append(f"{quantity} of {lacking}: not-run: {REASONS[quantity]}.")
    return texts


def _lacking(rows: pd.DataFrame) -> str:
    """The models without a value in some rows; of a model that has others, the lines without one."""
    texts = []
    for model, of_model in groups(rows, "model"):
        missing = of_model[of_model["status"] == NOT_RUN]
        lines = [row.method if pd.isna(row.beta) else f"β = {number(row.beta, 2)}" for row in records(missing)]
        if lines:
            texts.append(label(model) + (f" ({', '.join(lines)})" if len(missing) < len(of_model) else ""))
    return ", ".join(texts)


def _wide(long: pd.DataFrame) -> pd.DataFrame:
    """One row a line, for the CSV file: <quantity>_ours, _paper, _difference, _status, _claim, _verdict,
    _verdict_recording, _verdict_runs, _runs, and _ours_<other setting>.
    """
    lines = []
    for (model, method, beta), rows in groups(long, ["model", "method", "beta"]):
        line: dict[str, object] = {"model": model, "method": method, "beta": beta}
        for entry in records(rows):
            if not entry.compared:
                line[f"{entry.quantity}_ours_{entry.setting}"] = entry.ours
                continue
            for part in ("ours", "paper", "difference", "status", "claim", *Verdict._fields, "runs"):
                line[f"{entry.quantity}_{part}"] = getattr(entry, part)
            if entry.quantity == "h_gq":
                line.update({f"h_gq_{part}": getattr(entry, part) for part in ("low", "high", "samples", "setting")})
        lines.append(line)
    return pd.DataFrame(lines)


def _build(
    table: int,
    shown: Callable[[pd.DataFrame], pd.Series],
    verdicts: Verdicts,
    recorded: Recorded,
    cache: pd.DataFrame,
    hashhop: pd.DataFrame,
    baseline: pd.DataFrame,
    memory: pd.DataFrame,
    pyramidinfer: Iterable[pd.DataFrame] = (),
) -> tuple[pd.DataFrame, list[str]]:
    """The long frame of table number `table`, and its notes; `shown` says which lines it has beside the paper's."""
    for kind, frame in (("cache", cache), ("hashhop", hashhop), ("memory", memory)):
        require(frame, kind)
    measured = _joined([cache_values(cache), quality_values(hashhop), longest_values(memory), *pyramidinfer])
    scores = baseline_scores(baseline, measured)
    cells = _joined([with_undecided(measured, scores), recorded_values(recorded)])
    printed = printed_cells(table, verdicts)
    lines = pd.concat([printed[LINE], cells.loc[shown(cells), LINE]]).drop_duplicates()
    order = {model: place for place, model in enumerate(models_shown(cells))}
    lines = lines.assign(place=lines["model"].map(order)).sort_values(["place", "beta"], kind="stable")[LINE]
    long = long_frame(lines, cells, printed)
    notes_on_gpus = [
        f"{gpu}: recorded on this GPU by another study. Its caches are those of models with random weights in "
        "bfloat16, its h_gq that of models which that study trained."
        for gpu in recorded
    ]
    return long, [*notes(long, cache, memory, scores), *notes_on_gpus]


def table2(
    cache: pd.DataFrame,
    hashhop: pd.DataFrame,
    baseline: pd.DataFrame,
    memory: pd.DataFrame,
    pyramidinfer: pd.DataFrame,
    verdicts: Verdicts,
    recorded: Recorded,
    pyramidinfer_hashhop: pd.DataFrame | None = None,
) -> Table:
    """Table 2: every line of the paper's, then the study's other models at the fractions of heads that it uses.

    `baseline` is HashHop before conversion: it says whether h_gq after it decides anything.

    Raises:
        ValueError: no cache of 10,240 or 61,440 tokens, two caches for one cell, or a model with h_gq that has none
            before conversion.
    """

    def shown(cells: pd.DataFrame) -> pd.Series:
        another = ~cells["model"].isin(BACKBONE_LABELS) & cells["beta"].isin([0.0, *TABLE2_BETAS.values()])
        return cells["beta"].isna() | another

    others = [pyramidinfer_values(pyramidinfer)]
    if pyramidinfer_hashhop is not None:
        others.append(pyramidinfer_quality(pyramidinfer_hashhop))
    long, text = _build(2, shown, verdicts, recorded, cache, hashhop, baseline, memory, others)
    text.append(
        "PyramidInfer: keys and values that its cache keeps of a random prompt in the paper's setting "
        f"({PYRAMIDINFER_RATIO:g} of the tokens kept from layer to layer, {PYRAMIDINFER_MINIMUM} at least). h_gq and "
        "l_m: the same method in the original trained likewise, and in one with random weights."
    )
    if more := ", ".join(label(model) for model in long["model"].unique() if model not in BACKBONE_LABELS):
        text.append(f"{more}: not in the paper, shown at the fractions that its Table 2 uses.")
    title = (
        "Longest input, generation quality and cache size by optimisation method: ours, the paper's, and the difference"
    )
    return Table("table2", title, _wide(long), lines_of(long), text)


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
    long, text = _build(4, lambda cells: cells["beta"].notna(), verdicts, recorded, cache, hashhop, baseline, memory)
    lines = [{heading: text for heading, text in line.items() if heading != "Method"} for line in lines_of(long)]
    title = "Longest input, generation quality and cache size at every fraction β of replaced heads"
    return Table("table4", title, long, lines, text)
