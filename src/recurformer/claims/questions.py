"""The reviewers' questions, one a row, with the answers that the measurements of the ablations give."""

from typing import NamedTuple

import pandas as pd

from recurformer.claims.claim import QUESTIONS, Missing, Question, Undecided
from recurformer.claims.evidence import THIS_STUDY, Evidence
from recurformer.claims.register import judge_of
from recurformer.render.measurements import require
from recurformer.render.tables.table import Table
from recurformer.render.words import NOT_RUN, NOTHING, UNDECIDED

YES, NO = "yes", "no"


class Answer(NamedTuple):
    """What the data say: a sentence, the verdict, the samples behind it, and the runs that measured them."""

    text: str
    verdict: str
    samples: int | None = None
    runs: str = ""


def _answer(question: Question, evidence: Evidence) -> Answer:
    judge = judge_of(question)
    if judge is None:
        return Answer(question.unanswered, NOT_RUN)
    looked_at = evidence.fresh()
    try:
        finding = judge(looked_at)
    except Missing as missing:
        return Answer(str(missing), UNDECIDED if isinstance(missing, Undecided) else NOT_RUN)
    verdict = (YES if finding.holds else NO) if finding.decided else UNDECIDED
    runs = " ".join(sorted(looked_at.used - {""}))
    return Answer(finding.ours + (f"; {finding.reason}" if finding.reason else ""), verdict, finding.samples, runs)


def _evidence(question: Question, answer: Answer) -> str:
    if answer.verdict == NOT_RUN:
        return NOTHING
    samples = f"{answer.samples:,} samples" if answer.samples else ""
    return ", ".join(filter(None, [question.figure, samples])) or NOTHING


def reviewer_questions(
    ablation_hashhop: pd.DataFrame | None = None,
    hashhop_sizes: pd.DataFrame | None = None,
    needle: pd.DataFrame | None = None,
    continuation: pd.DataFrame | None = None,
    ablation_lm_eval: pd.DataFrame | None = None,
    ra_i_settings: pd.DataFrame | None = None,
    head_scores: pd.DataFrame | None = None,
    recovery: pd.DataFrame | None = None,
) -> Table:
    """What the reviewers asked, with the answer of the measurements there are, or why there is none.

    Raises:
        ValueError: missing columns, or no rows in what was given.
    """
    given = {kind: frame for kind, frame in locals().items() if frame is not None}
    frames = {kind: require(frame, kind).assign(file=lambda rows: rows.get("run", "")) for kind, frame in given.items()}
    evidence = Evidence(THIS_STUDY, frames, {})
    asked = [(_answer(question, evidence), name, question) for name, question in QUESTIONS.items()]
    frame = pd.DataFrame(
        [(name, one.question, one.asked_by, one.figure, *answer) for answer, name, one in asked],
        columns=["id", "question", "asked_by", "figure", "answer", "verdict", "samples", "runs"],
    )
    lines = [
        {
            "Question": one.question, "Reviewer": one.asked_by, "Answer": answer.text, "Verdict": answer.verdict,
            "Evidence": _evidence(one, answer),
        }
        for answer, _, one in asked
    ]  # fmt: skip
    notes = (
        "Verdicts: yes, no, undecided (measured, but not well enough, for the reason in the answer), not-run (not "
        "measured). They rest on one training of each model and hold for the models and sizes of this study.",
        "RecurFormer: heads of the highest RA-I replaced by Mamba, after training where it was trained. Eviction and "
        "pooled heads are compared at the cache that RecurFormer held, interpolated between their settings.",
        "Reviewers are numbered in the order of the page; “–”: none of them asked, the paper leaves it open.",
    )
    title = "What the reviewers asked, and what the measurements say"
    return Table("reviewer_questions", title, frame.astype({"samples": "Int64"}), lines, notes)
