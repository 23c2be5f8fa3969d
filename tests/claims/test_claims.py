"""Every claim can hold and can fail, and belongs to a finding."""

import pytest
from mutated_worlds import CLAIMS, IMPOSSIBLE, MUTATIONS, TESTED, ideal, judged, mutations_of

from recurformer.claims.claim import FINDINGS, QUESTIONS, STATEMENTS, fact_of
from recurformer.claims.ledger import REVIEWER, decide
from recurformer.paper import CELLS, NUMBERS
from recurformer.render.registry import REGISTRY
from tests.worlds import world


def test_every_printed_number_every_statement_and_every_figure_of_the_ablations_is_a_claim():
    asked = {f"reviewer/{name}": one.figure for name, one in QUESTIONS.items() if one.claim}
    assert {claim.id for claim in CLAIMS.values() if claim.kind == REVIEWER} == set(asked)
    drawn = {name for name, entry in REGISTRY["figures"].items() if entry.part in {"ablations", "prices"}}
    assert drawn - {"frontier"} <= set(asked.values())
    assert len(CLAIMS) == len(CELLS) + len(NUMBERS) + len(STATEMENTS) + len(asked)
    assert len(CELLS) == 138
    for claim in CLAIMS.values():
        assert claim.place and claim.statement and claim.test and claim.tolerance and claim.needs
    assert {fact_of(claim.id) for claim in CLAIMS.values() if claim.kind != REVIEWER} == set(FINDINGS)


@pytest.mark.parametrize("claim", TESTED, ids=lambda claim: claim.id)
def test_every_claim_can_hold_and_can_fail(claim):
    if claim.id in IMPOSSIBLE:
        assert judged(claim.id, "the paper is right") is False
    else:
        decision = decide(claim, [world(ideal())])
        assert decision.finding.holds and decision.at_scale and decision.finding.ours, decision
    assert any(judged(claim.id, name) is False for name in mutations_of(claim.id))


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_breaks_a_claim(name):
    touched = (claim.id for claim in TESTED if claim.id not in IMPOSSIBLE and name in mutations_of(claim.id))
    assert any(judged(claim, name) is False for claim in touched)
