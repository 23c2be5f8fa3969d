"""The reviewers' questions, one a row, with the answers that the measurements of the ablations give."""

from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from recurformer.paper import QUESTIONS
from recurformer.paper.entries import Question
from recurformer.render.measurements import require
from recurformer.render.tables.cell_text import NOTHING
from recurformer.render.tables.table import Table
from recurformer.render.verdicts import NOT_RUN, UNDECIDED

if TYPE_CHECKING:
    from recurformer.render.claims.evidence import Evidence

YES, NO = "yes", "no"


class Answer(NamedTuple):
    """What the data say: a sentence, the verdict, the samples behind it, and the runs that measured them."""

    text: str
    verdict: str
    samples: int | None = None
    runs: str = ""


def _answer(question: Question, evidence: "Evidence") -> Answer:
    from recurformer.render.claims.claim import Missing, Undecided
    from recurformer.render.claims.reviewers import ANSWERS

    if question.unanswered:
        return Answer(question.unanswered, NOT_RUN)
    looked_at = evidence.fresh()
    try:
        finding = ANSWERS[question.id](looked_at)
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
    """What the reviewers asked, with the answer of the measurements there are, or why there is none."""
    given = {kind: frame for kind, frame in locals().items() if frame is not None}
    from recurformer.render.claims.evidence import THIS_STUDY, Evidence  # which imports modules of this package

    frames = {kind: require(frame, kind).assign(file=lambda rows: rows.get("run", "")) for kind, frame in given.items()}
    evidence = Evidence(THIS_STUDY, frames, {})
    answers = {question: _answer(question, evidence) for question in QUESTIONS.values()}
    rows = [
        (question.id, question.question, question.asked_by, question.figure, *answer)
        for question, answer in answers.items()
    ]
    columns = ["id", "question", "asked_by", "figure", "answer", "verdict", "samples", "runs"]
    frame = pd.DataFrame(rows, columns=columns)
    headings = [("", heading) for heading in ("Question", "Reviewer", "Answer", "Verdict", "Evidence")]
    lines = [
        (question.question, question.asked_by, answer.text, answer.verdict, _evidence(question, answer))
        for question, answer in answers.items()
    ]
    notes = (
        "Verdicts: yes, no, undecided (measured, but not well enough, for the reason in the answer), not-run (not "
        "measured). They rest on one training of each model and hold for the models and sizes of this study.",
        "RecurFormer: heads of the highest RA-I replaced by Mamba, after training where it was trained. Eviction and "
        "pooled heads are compared at the cache that RecurFormer held, interpolated between their settings.",
        "Reviewers are numbered in the order of the page; “–”: none of them asked, the paper leaves it open.",
    )
    display = pd.DataFrame(lines, columns=pd.MultiIndex.from_tuples(headings))
    title = "What the reviewers asked, and what the measurements say"
    return Table("reviewer_questions", title, frame.astype({"samples": "Int64"}), display, notes)
