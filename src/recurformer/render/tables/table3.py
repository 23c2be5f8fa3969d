"""Table 3: perplexity after continual training, original against RecurFormer."""

import numpy as np
import pandas as pd

from recurformer.paper import BACKBONE_LABELS, CELLS, label
from recurformer.render.tables.table import Line, Table
from recurformer.results.cells import perplexities, replacing
from recurformer.results.frames import groups, models_in_order, require, require_values
from recurformer.results.words import LEGEND, MARKS, NOT_RUN, NOTHING, Verdicts, beside, counted, number

SPLIT = "validation"
MOMENTS = ("before", "converted", "trained")
"""Before anything was done; converted but not trained; after continual training, which is the paper's stage."""


def _printed(verdicts: Verdicts) -> pd.DataFrame:
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


def _line(model: str, beta: float, rows: pd.DataFrame) -> Line:
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
    frame = perplexities(held_out).merge(_printed(verdicts), on=["model", "beta", "stage"], how="outer", sort=False)
    frame["difference"] = frame["ours"] - frame["paper"]
    frame["status"] = np.where(frame["ours"].notna(), "measured", NOT_RUN)
    for column in ("ours", "paper"):
        frame[f"{column}_over_original"] = _over_original(frame, column)
    frame[["seeds", "tokens"]] = frame[["seeds", "tokens"]].astype("Int64")
    models = list(dict.fromkeys([*BACKBONE_LABELS, *models_in_order(perplexity)]))
    order = {name: place for place, name in enumerate([*models, *MOMENTS])}
    frame = frame.sort_values(["model", "beta", "stage"], key=lambda column: column.replace(order), ignore_index=True)
    lines = [_line(model, beta, rows) for (model, beta), rows in groups(frame, ["model", "beta"])]
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
