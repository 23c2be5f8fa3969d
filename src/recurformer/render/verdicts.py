"""The verdicts on a claim, and the marks that stand for them in tables."""

from collections.abc import Mapping

REPRODUCED, CONSISTENT, CONTRADICTED, FAILS_SMALL = "reproduced", "consistent", "contradicted", "fails-small"
PAPER_INCONSISTENT, UNDECIDED, NOT_RUN = "paper-inconsistent", "undecided", "not-run"
MARKS = {
    REPRODUCED: "✓", CONSISTENT: "≈", CONTRADICTED: "✗", FAILS_SMALL: "≉", PAPER_INCONSISTENT: "!", UNDECIDED: "?",
    NOT_RUN: "○",
}  # fmt: skip
"""The verdicts, each with the mark that stands for it in a table."""
MEANINGS = {
    REPRODUCED: "the test holds at the paper's scale",
    CONSISTENT: "it holds at a smaller scale",
    CONTRADICTED: "it fails at the paper's scale",
    FAILS_SMALL: "it fails at a smaller scale, which does not contradict the paper's own",
    PAPER_INCONSISTENT: "the paper contradicts itself",
    UNDECIDED: "it was measured, but the measurement does not decide it, for the reason given",
    NOT_RUN: "nothing here has measured it, for the reason given",
}
HELD, FAILED = {True: REPRODUCED, False: CONSISTENT}, {True: CONTRADICTED, False: FAILS_SMALL}
"""Whether it was tested at the paper's scale -> the verdict on a test that holds, and on one that fails."""
Verdicts = Mapping[str, str]
"""Id of a claim -> its verdict."""
LEGEND = f"Verdicts: {', '.join(f'{sign} {verdict}' for verdict, sign in MARKS.items())}; the reasons: claims.md."
