"""The reviewers' questions, one a row, with the answers that the measurements of the ablations give."""

from typing import Any

import pandas as pd

from recurformer.render.tables.table import Table
from recurformer.results.frames import records
from recurformer.results.words import NOT_RUN, NOTHING


def _evidence(row: Any) -> str:
    if row.verdict == NOT_RUN:
        return NOTHING
    samples = f"{row.samples:,} samples" if pd.notna(row.samples) else ""
    return ", ".join(filter(None, [row.figure, samples])) or NOTHING


def questions_table(answers: pd.DataFrame) -> Table:
    """What the reviewers asked, from the answers of `recurformer.claims.questions`."""
    lines = [
        {
            "Question": row.question, "Reviewer": row.asked_by, "Answer": row.answer, "Verdict": row.verdict,
            "Evidence": _evidence(row),
        }
        for row in records(answers)
    ]  # fmt: skip
    notes = (
        "Verdicts: yes, no, undecided (measured, but not well enough, for the reason in the answer), not-run (not "
        "measured). They rest on one training of each model and hold for the models and sizes of this study.",
        "RecurFormer: heads of the highest RA-I replaced by Mamba, after training where it was trained. Eviction and "
        "pooled heads are compared at the cache that RecurFormer held, interpolated between their settings.",
        "Reviewers are numbered in the order of the page; “–”: none of them asked, the paper leaves it open.",
    )
    title = "What the reviewers asked, and what the measurements say"
    return Table("reviewer_questions", title, answers, lines, notes)
