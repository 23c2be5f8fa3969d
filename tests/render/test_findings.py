"""The numbers that docs/findings.md states about the claims are those of the data."""

import json
import re
from pathlib import Path

from recurformer.claims import all_claims
from recurformer.claims.claim import INCONSISTENCIES, STATEMENTS
from recurformer.paper import CELLS, NUMBERS
from recurformer.results.cells import PYRAMIDINFER
from recurformer.results.words import MARKS

ROOT = Path(__file__).parents[2]
FINDINGS = " ".join((ROOT / "docs/findings.md").read_text().split())


def test_it_counts_the_sentences_that_have_a_test():
    broken = {claim for found in INCONSISTENCIES.values() for claim in found.claims}
    tested = [name for name, sentence in STATEMENTS.items() if sentence.judge]
    audited = [name for name in STATEMENTS if name not in tested and name in broken]
    asked = sum(claim.id.startswith("reviewer/") for claim in all_claims())
    left = len(STATEMENTS) - len(tested) - len(audited)
    absent = [
        entry for entry in (*CELLS, *NUMBERS) if entry.method == PYRAMIDINFER and entry.quantity in {"l_m", "h_gq"}
    ]
    for stated in (
        f"{len(CELLS)} table cells, {len(NUMBERS)} numbers that the text repeats, {len(STATEMENTS)} sentences,",
        f"Of the {len(STATEMENTS)}, {len(tested)} have a test on measurements",
        f"numbers and words decide {len(audited)}:",
        f"For the other {left} no stage measures anything yet.",
        f"the {len(absent)} longest inputs and h_gq of PyramidInfer",
        f"The {asked} statements that the reviewers asked about",
    ):
        assert stated in FINDINGS


def test_its_verdicts_are_those_of_the_recorded_ledger():
    lines = {name: re.findall(rf"\| {re.escape(sign)} {name} \| (\d+) \|", FINDINGS) for name, sign in MARKS.items()}
    shown = {name: int(count) for name, (count,) in lines.items()}
    recorded = json.loads((ROOT / "recorded/cpu/results/claims.json").read_text())
    assert shown == recorded["counts"]
    assert f"{recorded['by_definition']} of them by definition" in FINDINGS
