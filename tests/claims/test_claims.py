"""Every claim can hold and can fail, and belongs to a finding."""

import math

import pytest
from claims_world import world
from mutated_worlds import (
    CLAIMS,
    FALLS,
    IMPOSSIBLE,
    MISSING_METHOD,
    MUTATIONS,
    RECOVERY,
    SHOWN_NOWHERE,
    TESTED,
    UNKNOWN,
    decided,
    ideal,
    judged,
    mutations_of,
    with_column,
)

from recurformer.claims import all_claims, decide
from recurformer.claims.claim import FINDINGS, QUESTIONS, STATEMENTS, fact_of
from recurformer.claims.ledger import REVIEWER
from recurformer.paper import CELLS, NUMBERS
from recurformer.render.figures_ablations import ABLATIONS
from recurformer.results.words import (
    NOT_RUN,
    UNDECIDED,
)


def test_every_printed_number_every_statement_and_every_figure_of_the_ablations_is_a_claim():
    asked = (
        RECOVERY
        | SHOWN_NOWHERE
        | {name.replace("ablation_", "reviewer/") for name in ABLATIONS if name.startswith("ablation_")}
    )
    assert {claim.id for claim in CLAIMS.values() if claim.kind == "reviewer"} == asked
    assert {f"reviewer/{name}" for name, question in QUESTIONS.items() if question.claim} == asked
    assert len(CLAIMS) == len(CELLS) + len(NUMBERS) + len(STATEMENTS) + len(asked)
    assert len(CELLS) == 138
    for claim in CLAIMS.values():
        assert claim.place and claim.statement and claim.test and claim.tolerance and claim.needs


@pytest.mark.parametrize("claim", TESTED, ids=lambda claim: claim.id)
def test_every_claim_can_hold_and_can_fail(claim):
    if claim.id in MISSING_METHOD:
        assert judged(claim.id, "the paper is right") is None
        return
    if claim.id in IMPOSSIBLE:
        assert judged(claim.id, "the paper is right") is False
    else:
        decision = decide(claim, [world(ideal())])
        assert decision.finding.holds and decision.at_scale and decision.finding.ours, decision
    assert any(judged(claim.id, name) is False for name in mutations_of(claim.id))


def test_every_claim_of_the_paper_belongs_to_a_finding():
    assert {fact_of(claim.id) for claim in all_claims() if claim.kind != REVIEWER} == set(FINDINGS)


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_breaks_a_claim(name):
    touched = (claim.id for claim in TESTED if claim.id not in IMPOSSIBLE and name in mutations_of(claim.id))
    assert any(judged(claim, name) is False for claim in touched)


@pytest.mark.parametrize(
    ("claim", "kind", "column", "value", "why"),
    [
        ("table4/llama2-7b/0.90/l_m", "memory", "at_least", True, "at least 91,800: nothing longer was tried"),
        ("text/longer-inputs", "memory", "at_least", True, "at least that long only"),
        ("table4/llama2-7b/0.90/h_gq", "baseline", "correct", 8, "needs 0.95"),
        ("text/quality-kept", "baseline", "correct", 8, "0.95 is needed"),
        ("figure4/poor-without-attention", "mqar", "correct", 5, "lowest accuracy on a trained length is 0.005"),
        ("text/first-contributes-less", "contribution", "samples", 4, "4 windows of text are too few"),
        ("text/attention-sink", "sink", "samples", 31, "31 windows of text are too few"),
        ("text/training-necessary", "perplexity", "negative_log_likelihood", 9000.0, "not a language model"),
        ("reviewer/pareto", "compared_hashhop", "correct", 15, "reaches 0.938 (h_gq on HashHop); a comparison needs"),
        ("reviewer/needle", "needle", "correct", 0, "reaches 0 (passkeys); a comparison needs 0.95"),
        ("reviewer/length", "continuation", "negative_log_likelihood", 160.0, "reaches 148 (perplexity); a comparison"),
        ("table3/llama2-7b/recurformer/perplexity", "perplexity", "fall", math.nan, UNKNOWN),
        ("reviewer/needle", "needle", "fall", math.nan, UNKNOWN),
        *((claim, kind, "fall", 0.2, FALLS) for claim, kind in (
            ("table3/llama2-7b/original/perplexity", "perplexity"),
            ("table4/llama2-7b/0.90/h_gq", "hashhop"),
            ("figure3/converge", "metrics"),
            ("text/perplexity-comparable", "perplexity"),
            ("text/quality-kept", "hashhop"),  # beside an original that still learns
            ("text/collapse-at-one", "hashhop"),
            ("text/collapse-in-mha-and-gqa", "hashhop"),
            ("figure4/poor-without-attention", "mqar"),
            ("figure4/attention-necessary", "mqar"),
            ("reviewer/pareto", "compared_hashhop"),
            ("reviewer/sizes", "hashhop_sizes"),
            ("reviewer/needle", "needle"),
            ("reviewer/length", "continuation"),
        )),
    ],
)  # fmt: skip
def test_evidence_without_power_decides_nothing(claim, kind, column, value, why):
    decision = decided(claim, **{kind: ideal()[kind].assign(**{column: value})})
    assert decision.verdict == UNDECIDED
    assert why in decision.reason
    assert CLAIMS[claim].needs in decision.reason


def test_what_was_only_computed_has_not_been_run():
    decision = decide(CLAIMS["table4/llama2-7b/0.90/l_m"], [world(with_column("memory", "source", lambda f: "model"))])
    assert decision.verdict == NOT_RUN
    assert "computed only" in decision.reason
