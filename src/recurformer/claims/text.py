"""The ledger as Markdown."""

from collections import Counter
from collections.abc import Iterable

from tabulate import tabulate

from recurformer.claims.claim import INCONSISTENCIES
from recurformer.claims.evidence import THIS_STUDY
from recurformer.claims.ledger import Decision, Ledger
from recurformer.results.words import MARKS, MEANINGS, cell, counted, plain

HEADINGS = ("place", "the paper", "ours", "verdict", "evidence", "why", "id")


def _evidence(decision: Decision) -> str:
    finding, evidence = decision.finding, decision.evidence
    if finding is None or evidence is None:
        return ""
    seeds = counted(decision.seeds, "seed") if decision.seeds else ""
    samples = counted(finding.samples, "sample") if finding.samples else ""
    scale = "paper's scale" if finding.at_scale else "smaller"
    return ", ".join(filter(None, [evidence.source, scale, seeds, samples]))


def _claims_table(decisions: Iterable[Decision]) -> str:
    rows = []
    for decision in decisions:
        claim, finding = decision.claim, decision.finding
        verdict = f"{MARKS[decision.verdict]} {decision.verdict}"
        ours = finding.ours if finding else ""
        why = decision.reason or claim.test
        rows.append([claim.place, claim.statement, ours, verdict, _evidence(decision), why, claim.id])
    return tabulate([[cell(text) for text in row] for row in rows], HEADINGS, tablefmt="pipe", disable_numparse=True)


def _findings_table(ledger: Ledger) -> list[str]:
    """One line for each distinct fact: the verdicts of its claims, with their numbers, and the first ids."""
    rows = [
        [
            cell(one["fact"]),
            ", ".join(f"{MARKS[name]} {name} {count}" for name, count in one["verdicts"].items()),
            ", ".join(one["claims"][:2]) + ", …" * (len(one["claims"]) > 2),
        ]
        for one in ledger.findings()
    ]
    table = tabulate(rows, ("finding", "its claims", "ids"), tablefmt="pipe", disable_numparse=True)
    return [f"{len(rows)} distinct findings decide all claims of the paper.", "", table]


def _contradictions() -> list[str]:
    lines = []
    for found in INCONSISTENCIES.values():
        lines.append(f"- **{plain(found.place)}**: {plain(found.rule)}.")
        lines += [f"    - {plain(line)}" for line in found.arithmetic]
    return lines


def from_recordings(decisions: Iterable[Decision]) -> list[str]:
    """How many verdicts rest on a recording, one line for each."""
    sources = Counter(decision.evidence.source for decision in decisions if decision.evidence)
    recorded = {source: count for source, count in sorted(sources.items()) if source != THIS_STUDY}
    return [f"Verdicts from {source}, not from this study: {count}." for source, count in recorded.items()]


def markdown(ledger: Ledger) -> str:
    """Counts, every claim with its verdict, and the contradictions in the paper with their arithmetic."""
    parts = {
        "Tables": ("table",),
        "Figures": ("figure",),
        "Text": ("text", "appendix"),
        "Questions of the reviewers": ("reviewer",),
    }
    lines = [f"# Verdicts on the paper's claims: study {plain(ledger.study)}", "", *_findings_table(ledger), ""]
    lines += [f"- {MARKS[name]} {name}: {count} ({MEANINGS[name]})" for name, count in ledger.counts().items()]
    lines += ["", f"{ledger.by_definition()} of the reproduced are so by definition: a cache over itself is 1."]
    if asked := ", ".join(f"{MARKS[name]} {name} {n}" for name, n in ledger.counts(reviewers=True).items() if n):
        lines += ["", f"Not counted above is what the reviewers asked and the paper does not claim: {asked}."]
    if recorded := from_recordings(ledger.decisions):
        lines += ["", *recorded]
    for heading, prefix in parts.items():
        chosen = [decision for decision in ledger.decisions if decision.claim.id.startswith(prefix)]
        if chosen:
            lines += ["", f"## {heading}", "", _claims_table(chosen)]
    lines += ["", "## Audit: where the paper contradicts itself", "", *_contradictions()]
    return "\n".join(lines) + "\n"
