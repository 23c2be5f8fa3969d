"""The claims ledger: the paper's statements, the test that decides each, and the verdict on the evidence."""

from recurformer.claims.claim import Claim, Finding
from recurformer.claims.evidence import THIS_STUDY, Evidence, Missing, evidence_of, read_recordings
from recurformer.claims.ledger import Decision, Ledger, all_claims, decide, make_ledger

__all__ = [
    "THIS_STUDY",
    "Claim",
    "Decision",
    "Evidence",
    "Finding",
    "Ledger",
    "Missing",
    "all_claims",
    "decide",
    "evidence_of",
    "make_ledger",
    "read_recordings",
]
