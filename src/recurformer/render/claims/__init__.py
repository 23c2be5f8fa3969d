"""The claims ledger: what the paper states, the test that decides it, and the verdict on the evidence there is."""

from recurformer.render.claims.claim import Claim, Finding, Missing
from recurformer.render.claims.evidence import THIS_STUDY, Evidence, read_evidence, read_recordings
from recurformer.render.claims.ledger import Decision, Ledger, all_claims, decide, make_ledger

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
    "make_ledger",
    "read_evidence",
    "read_recordings",
]
