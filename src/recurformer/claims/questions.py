"""The reviewers' questions, one a row, with the answers that the measurements of the ablations give."""

from typing import NamedTuple

import pandas as pd

from recurformer.claims.claim import QUESTIONS, Question
from recurformer.claims.evidence import THIS_STUDY, Evidence, Missing, Undecided
from recurformer.claims.ledger import judge_of
from recurformer.results.frames import require
from recurformer.results.words import NOT_RUN, UNDECIDED

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
    try:
        finding = judge(evidence)
    except Missing as missing:
        return Answer(str(missing), UNDECIDED if isinstance(missing, Undecided) else NOT_RUN)
    verdict = (YES if finding.holds else NO) if finding.decided else UNDECIDED
    text = finding.ours + (f"; {finding.reason}" if finding.reason else "")
    return Answer(text, verdict, finding.samples, " ".join(evidence.runs(finding.rows)))


def reviewer_questions(
    compared_hashhop: pd.DataFrame | None = None,
    hashhop_sizes: pd.DataFrame | None = None,
    needle: pd.DataFrame | None = None,
    continuation: pd.DataFrame | None = None,
    ablation_lm_eval: pd.DataFrame | None = None,
    ra_i_settings: pd.DataFrame | None = None,
    head_scores: pd.DataFrame | None = None,
    recovery: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """What the reviewers asked, with the answer of the measurements there are, or why there is none: id, question,
    asked_by, figure, answer, verdict, samples, runs.

    Raises:
        ValueError: missing columns, or no rows in what was given.
    """
    given = {kind: frame for kind, frame in locals().items() if frame is not None}
    evidence = Evidence(THIS_STUDY, {kind: require(frame, kind) for kind, frame in given.items()}, {})
    rows = [(name, one.question, one.asked_by, one.figure, *_answer(one, evidence)) for name, one in QUESTIONS.items()]
    columns = ["id", "question", "asked_by", "figure", "answer", "verdict", "samples", "runs"]
    return pd.DataFrame(rows, columns=columns).astype({"samples": "Int64"})
