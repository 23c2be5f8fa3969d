"""The five verdicts on a claim, and the marks that stand for them in tables."""

from collections.abc import Mapping

REPRODUCED, CONSISTENT, CONTRADICTED = "reproduced", "consistent", "contradicted"
PAPER_INCONSISTENT, NOT_RUN = "paper-inconsistent", "not-run"
MARKS = {REPRODUCED: "✓", CONSISTENT: "≈", CONTRADICTED: "✗", PAPER_INCONSISTENT: "!", NOT_RUN: "○"}
"""The five verdicts, each with the mark that stands for it in a table."""
MEANINGS = {
    REPRODUCED: "the test holds at the paper's scale",
    CONSISTENT: "it holds at a smaller scale",
    CONTRADICTED: "it was run, at the scale named, and fails",
    PAPER_INCONSISTENT: "the paper contradicts itself",
    NOT_RUN: "nothing here can decide it, for the reason given",
}
Verdicts = Mapping[str, str]
"""Id of a claim -> its verdict."""
LEGEND = f"Verdicts: {', '.join(f'{sign} {verdict}' for verdict, sign in MARKS.items())}; the reasons: claims.md."


def mark(verdicts: Verdicts, claim: str) -> str:
    """The mark of a claim's verdict; a dash where the paper has no such claim."""
    return MARKS.get(verdicts.get(claim, ""), "–")
