"""lm-eval's tasks: the original as it came, the original trained likewise, and RecurFormer."""

import pandas as pd

from recurformer.paper import label
from recurformer.render.tables.table import Line, Table
from recurformer.results.frames import groups, models_in_order, records, runs_of
from recurformer.results.scores import identified, of
from recurformer.results.words import NOTHING, number

KIND = "ablation_lm_eval"
UNTOUCHED, TRAINED, OURS = "original", "original, trained", "RecurFormer, trained"
KEYS = ["model", "task", "metric"]


def _compared(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of what is compared, with its name and its share of replaced heads."""
    originals, ours = of(rows, "original"), of(rows, "mixer", "mamba")
    return pd.concat([
        originals.assign(compared=originals["trained"].map({False: UNTOUCHED, True: TRAINED}), beta=0.0),
        ours[ours["trained"]].assign(compared=OURS, beta=ours["setting"]),
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
    rows = _compared(identified(ablation_lm_eval, KIND))
    if rows.empty:
        raise ValueError(f"{KIND} measurements are of other models than the original and RecurFormer")
    betas = sorted(rows.loc[rows["compared"] == OURS, "beta"].unique())
    headings = {(compared, 0.0): compared for compared in (UNTOUCHED, TRAINED)}
    headings |= {(OURS, beta): f"{OURS}, β {beta:g}" for beta in betas}
    lines: list[Line] = []
    frames = []
    for model in models_in_order(rows):
        for (_, task, metric), found in groups(rows[rows["model"] == model], KEYS):
            if found.duplicated(["compared", "beta"]).any():
                raise ValueError(f"{KIND} measurements have two values of {model}, {task}, {metric}")
            cells = dict.fromkeys(headings.values(), NOTHING)
            cells |= {headings[row.compared, row.beta]: _cell(row.value, row.stderr) for row in records(found)}
            samples = sorted(found["samples"].unique())
            asked = " to ".join(f"{count:,}" for count in dict.fromkeys([samples[0], samples[-1]]))
            lines.append({"Model": label(model), "Task": task, "Metric": metric, "samples": asked, **cells})
            runs = [runs_of(found.loc[[place]]) for place in found.index]
            frames.append(found.assign(runs=runs))
    frame = pd.concat(frames)[[*KEYS, "compared", "beta", "value", "stderr", "samples", "runs"]]
    notes = (
        "A cell: the value ± lm-eval's standard error over the samples; perplexities have none. “Trained”: the "
        "original and RecurFormer by the same continual training. “–”: not measured.",
        "`passkey`, `hashhop` and `wikipedia` are this project's own tasks, all others lm-eval's. A metric that is a "
        "number is the score of RULER's prompts of so many tokens.",
        "What the values say about RecurFormer: the claim reviewer/lm-eval in claims.md.",
    )
    title = "Tasks of lm-eval: the original as it came, the original trained likewise, and RecurFormer"
    return Table("lm_eval", title, frame.reset_index(drop=True), lines, notes)
