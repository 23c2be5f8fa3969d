"""The tables that the paper does not have: lm-eval's tasks, recipes of recovery, the reviewers' questions."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from recurformer.paper import label
from recurformer.render.table import Line, Table
from recurformer.results.frames import COLUMNS, by_model, groups, records, runs_of
from recurformer.results.frontier import SEEN_BY_SNAPKV, frontier_scores
from recurformer.results.learned import CURVE, LENGTHS, arm_label, last_points, recovery_points, untrained
from recurformer.results.scores import (
    CONTINUATION,
    DIVERGENCE,
    LONG,
    PASSKEY,
    SUBJECT,
    by_method,
    identified,
    method_label,
    of,
    scores,
    subject_of,
)
from recurformer.results.words import NOT_RUN, NOTHING, estimated, from_to, number

LM_EVAL = "ablation_lm_eval"
AS_IT_CAME, TRAINED, OURS = "original", "original, trained", "RecurFormer, trained"
KEYS = ["model", "task", "metric"]


def _compared(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of what is compared, with its name and its fraction of replaced heads."""
    originals, ours, priced = of(rows, "original"), of(rows, "mixer", "mamba"), of(rows, "priced")
    shares = [f"{method_label('priced', row.method)}, {row.setting:g} of the cache" for row in records(priced)]
    return pd.concat([
        originals.assign(compared=originals["trained"].map({False: AS_IT_CAME, True: TRAINED}), beta=0.0),
        ours[ours["trained"]].assign(compared=OURS, beta=ours["setting"]),
        priced.assign(compared=shares, beta=0.0).sort_values(["method", "setting"], ascending=False),
    ])  # fmt: skip


def _cell(value: float, stderr: float) -> str:
    """A value with its standard error, if it has one.

    >>> _cell(0.5, 0.05), _cell(12.3456, float("nan"))
    ('0.500 ± 0.050', '12.346')
    """
    return number(value, 3) + (f" ± {number(stderr, 3)}" if pd.notna(stderr) else "")


def lm_eval_table(ablation_lm_eval: pd.DataFrame) -> Table:
    """Every metric of every task that was measured, with lm-eval's standard error.

    Raises:
        ValueError: missing columns, no rows, or two values for one cell.
    """
    rows = _compared(identified(ablation_lm_eval, LM_EVAL))
    if rows.empty:
        raise ValueError(f"{LM_EVAL} measurements are of nothing that this table compares")
    betas = sorted(rows.loc[rows["compared"] == OURS, "beta"].unique())
    headings = {(compared, 0.0): compared for compared in (AS_IT_CAME, TRAINED)}
    headings |= {(OURS, beta): f"{OURS}, β {beta:g}" for beta in betas}
    headings |= {(compared, 0.0): compared for compared in rows.loc[rows["family"] == "priced", "compared"]}
    lines: list[Line] = []
    frames = []
    for model, of_model in by_model(rows):
        for (_, task, metric), of_metric in groups(of_model, KEYS):
            if of_metric.duplicated(["compared", "beta"]).any():
                raise ValueError(f"{LM_EVAL} measurements have two values of {model}, {task}, {metric}")
            cells = dict.fromkeys(headings.values(), NOTHING)
            cells |= {headings[row.compared, row.beta]: _cell(row.value, row.stderr) for row in records(of_metric)}
            asked = from_to(of_metric["samples"])
            lines.append({"Model": label(model), "Task": task, "Metric": metric, "samples": asked, **cells})
            runs = [runs_of(of_metric.loc[[place]]) for place in of_metric.index]
            frames.append(of_metric.assign(runs=runs))
    frame = pd.concat(frames)[[*KEYS, "compared", "beta", "value", "stderr", "samples", "runs"]]
    notes = (
        "A cell: the value ± lm-eval's standard error over the samples; perplexities have none. “Trained”: the "
        "original and RecurFormer by the same continual training. “–”: not measured.",
        "`passkey`, `hashhop` and `wikipedia` are this project's own tasks, all others lm-eval's. A metric that is a "
        "number is the score of RULER's prompts of so many tokens.",
        "What the values say about RecurFormer: the claim reviewer/lm-eval in claims.md.",
    )
    title = "Tasks of lm-eval: the original as it came, the original trained likewise, and what was made of it"
    return Table("lm_eval", title, frame.reset_index(drop=True), lines, notes)


UNTOUCHED = "original, as it was"
SHOWN_LENGTHS = dict(zip(LENGTHS, ("10k", "60k"), strict=True))


def _measured_on(rows: pd.DataFrame | None, kind: str, run: Any) -> pd.DataFrame:
    """The rows of a kind of the ablations that were measured on the model of a run."""
    if rows is None:
        return pd.DataFrame(columns=COLUMNS[kind])
    measured, columns = identified(rows, kind), subject_of(run.arm).columns()
    about = {"model": run.model, "family": columns["family"], "method": columns["method"], "seed": run.seed,
        "trained": run.tokens > 0}  # fmt: skip
    chosen = (measured[list(about)] == list(about.values())).all(axis=1)
    return measured[chosen & ((measured["setting"] - run.beta).abs() < 1e-6 if run.beta else True)]


def recovery_table(
    recovery: pd.DataFrame, needle: pd.DataFrame | None = None, continuation: pd.DataFrame | None = None
) -> Table:
    """Every arm at the end of its run: quality on held-out windows, needles, continuations, cache, tokens and minutes.

    Raises:
        ValueError: no original.
    """
    points = recovery_points(recovery)
    rows: list[dict[str, Any]] = []
    for model, of_model in groups(points, "model"):
        original = untrained(points, model)
        trained = last_points(of_model[of_model["arm"] == "original"]).set_index("tokens")["perplexity"].to_dict()
        ends = pd.concat([original.to_frame().T, last_points(of_model).sort_values(["beta", "arm"])])
        for run in records(ends):
            needles, written = _measured_on(needle, "needle", run), _measured_on(continuation, "continuation", run)
            asked = needles[needles["task"] == PASSKEY].groupby("length")[["correct", "queries"]].sum()
            rows.append({
                **{name: getattr(run, name) for name in (*CURVE, "tokens")}, "minutes": run.seconds / 60,
                **{name: getattr(run, name) for name in ("perplexity", "perplexity_low", "perplexity_high")},
                "over_original": run.perplexity / original["perplexity"],
                "over_trained": run.perplexity / trained.get(run.tokens, np.nan),
                **{name: getattr(run, name) for name in ("divergence", "divergence_low", "divergence_high")},
                "continuation": CONTINUATION.shown(CONTINUATION.estimate(written).mean) if len(written) else np.nan,
                **{f"passkeys_{row.Index}": f"{row.correct} of {row.queries}" for row in asked.itertuples()},
                **{f"cache_{name}": getattr(run, f"bytes_{length}") / original[f"bytes_{length}"]
                   for length, name in SHOWN_LENGTHS.items()},
                "windows": run.windows, "runs": runs_of(recovery.loc[list(run.rows)]),
            })  # fmt: skip
    frame = pd.DataFrame(rows)
    passkeys = sorted(
        (str(name) for name in frame if str(name).startswith("passkeys_")), key=lambda name: int(name[9:])
    )
    seeds = {key: rows["seed"].unique() for key, rows in groups(frame, ["model", "arm"])}
    lines = [
        {
            "Model": label(row.model),
            "Recipe": (arm_label(row.arm, row.mixer) if row.tokens else UNTOUCHED)
            + (f", seed {row.seed}" if len(seeds[row.model, row.arm]) > 1 and row.tokens else ""),
            "β": number(row.beta, 2),
            "tokens": number(row.tokens, 0),
            "minutes": number(row.minutes, 1),
            ("held-out windows", "perplexity"): _estimated(row, "perplexity", 2),
            ("held-out windows", "over original"): number(row.over_original, 3),
            ("held-out windows", "trained likewise"): number(row.over_trained, 3),
            ("held-out windows", "KL"): _estimated(row, "divergence", 3),
            "continuation perplexity": number(row.continuation, 2),
            **{("passkeys", name[9:]): getattr(row, name) if isinstance(getattr(row, name), str) else NOTHING
               for name in passkeys},
            **{("cache", name): number(getattr(row, f"cache_{name}"), 4) for name in SHOWN_LENGTHS.values()},
        }
        for row in records(frame)
    ]  # fmt: skip
    notes = (
        "Recipes: plain training, our reading of the paper, which names no rates: Mamba blocks started at random, all "
        "weights trained on the language-model loss; from the closed form: the same, after the blocks' last layers "
        "were solved for; plus: solved for, then mixers and "
        "attention trained on the divergence from the original. Named by a mixer: the same as plus, at equal bytes.",
        "Perplexity and KL (divergence from the original, nats a token) with 95 % intervals over "
        f"{frame['windows'].min()} held-out windows. Over original: the untouched one, and the one trained on as many "
        "tokens, where it was measured. Minutes: of training only, on the machine named below.",
        "Cache: bytes at 10,240 and 61,440 tokens over those of the original. HashHop: not-run, these models have not "
        "learned it.",
    )
    return Table("recovery", "Quality of a converted model by recipe", frame, lines, notes)


def _estimated(row: Any, name: str, decimals: int) -> str:
    """A value with its interval."""
    low, high = getattr(row, f"{name}_low"), getattr(row, f"{name}_high")
    return estimated(getattr(row, name), low, high, decimals)


def long_inputs_table(long_continuation: pd.DataFrame) -> Table:
    """Every method at each size of its cache: divergence from the original after long prompts, and perplexity."""
    every = scores(long_continuation, replace(CONTINUATION, kind=LONG.kind))
    points = pd.concat(rows.sort_values("ratio", ascending=False, kind="stable") for _, rows in by_model(every))
    differ = scores(long_continuation, LONG).set_index(SUBJECT)[["mean", "high", "low"]].map(LONG.shown)
    differ = differ.set_axis(["divergence", "divergence_low", "divergence_high"], axis=1)
    frame = points[[*SUBJECT, "ratio", "samples"]].join(differ, on=SUBJECT)
    frame = frame.assign(
        perplexity=points["mean"].map(CONTINUATION.shown),
        runs=[runs_of(long_continuation.loc[list(labels)]) for labels in points["rows"]],
    )
    lines: list[Line] = [
        {
            "Model": label(row.model),
            "Method": method_label(row.family, row.method),
            "cache": number(row.ratio, 4),
            "KL": _estimated(row, "divergence", 4),
            "perplexity": number(row.perplexity, 2),
        }
        for row in records(frame)
    ]
    notes = (
        "Nothing was trained. Cache: bytes that the method holds after the prompt, over the original's full cache.",
        "KL: divergence from the original after the prompt, nats a token: mean, and in brackets the lowest and the "
        f"highest of {frame['samples'].min()} windows of text. Perplexity: of the text after the prompt.",
    )
    title = "How near a smaller cache stays to the original after a long prompt"
    return Table("long_inputs", title, frame, lines, notes)


def frontier_table(
    continuation: pd.DataFrame,
    needle: pd.DataFrame | None = None,
    turns: pd.DataFrame | None = None,
    written: pd.DataFrame | None = None,
) -> Table:
    """Every method at each size of its cache, with the scores that the figure of the same name draws.

    Raises:
        ValueError: neither divergence nor agreement was measured.
    """
    frames = []
    for measure, _, points, _, measured in frontier_scores(continuation, needle, turns, written):
        ends = ["high", "low"] if measure.in_nats else ["low", "high"]
        score = points[["mean", *ends]].map(measure.shown).set_axis(["mean", "low", "high"], axis=1)
        runs = [runs_of(measured.loc[list(labels)]) for labels in points["rows"]]
        frames.append(points[[*SUBJECT, "ratio", "samples"]].assign(measure=measure.name, runs=runs, **score))
    every = pd.concat(frames, ignore_index=True)
    asked = {name: from_to(rows["samples"]) for name, rows in groups(every, "measure")}
    ordered = [
        rows
        for _, of_model in by_model(every)
        for _, of_method in by_method(of_model)
        for _, rows in sorted(groups(of_method, SUBJECT), key=lambda one: -one[1]["ratio"].max())
    ]
    lines: list[Line] = []
    for rows in ordered:
        subject = rows.iloc[0]
        again = ", trained" if subject["family"] == "original" and subject["trained"] else ""
        held = dict.fromkeys(number(ratio, 3) for ratio in (rows["ratio"].max(), rows["ratio"].min()))
        lines.append({
            "Model": label(subject["model"]),
            "Method": method_label(subject["family"], subject["method"]) + again,
            "cache": " to ".join(held),
            **dict.fromkeys(asked, NOTHING),
            **{row.measure: estimated(row.mean, row.low, row.high, 4 if row.measure == DIVERGENCE.name else 2)
               for row in records(rows)},
        })  # fmt: skip
    notes = (
        "Cache: bytes that a method holds after the prompt, over the original's full cache. Of a shorter prompt a "
        "window holds a larger fraction: where the columns' prompts differ, the cell has the largest and the smallest, "
        "and the CSV file has each. Replaced heads are those of highest RA-I, where no other choice is named.",
        "Divergence: KL, nats a token, after the prompt. Agreement: fraction of tokens before one differs. Needles, "
        "and questions asked after a document was read or with it: the fraction found. In brackets: 95 % intervals "
        "over windows, prompts or documents, each by itself; those of a divergence are symmetric, and may pass 0. “–”: "
        "not measured, or the original itself.",
        f"Samples behind a cell: {'; '.join(f'{name} {count}' for name, count in asked.items())}.",
        *([SEEN_BY_SNAPKV] if "snapkv" in set(every.loc[every["measure"] != DIVERGENCE.name, "method"]) else []),
    )
    frame = pd.concat(ordered, ignore_index=True)
    return Table("frontier", "What a smaller cache costs, by method", frame, lines, notes)


def questions_table(answers: pd.DataFrame) -> Table:
    """What the reviewers asked, from the answers of `recurformer.claims.ledger.reviewer_questions`."""
    lines: list[Line] = []
    for row in records(answers):
        samples = f"{row.samples:,} samples" if pd.notna(row.samples) else ""
        place = row.recording or row.figure
        evidence = ", ".join(filter(None, [place, samples])) if row.verdict != NOT_RUN else ""
        lines.append({
            "Question": row.question, "Reviewer": row.asked_by, "Answer": row.answer, "Verdict": row.verdict,
            "Evidence": evidence or NOTHING,
        })  # fmt: skip
    notes = (
        "Verdicts: yes, no, undecided (measured, but not well enough, for the reason in the answer), not-run (not "
        "measured). Where the evidence names a recording, it decides, and not this study; CSV: its runs. "
        "The verdicts hold for the models and sizes that were measured; most rest on one training of each.",
        "RecurFormer: heads of the highest RA-I replaced by Mamba, after training where it was trained. Eviction and "
        "pooled heads are compared at the cache that RecurFormer held, interpolated between their settings.",
        "Reviewers are numbered in the order of the page; “–”: none of them asked, the paper leaves it open.",
    )
    title = "What the reviewers asked, and what the measurements say"
    return Table("reviewer_questions", title, answers, lines, notes)
