"""The strongest evidence decides, and the ledger counts and shows it."""

import pandas as pd
import pytest
from claims_world import world
from mutated_worlds import CLAIMS, IMPOSSIBLE, MUTATIONS, RECOVERY, SHOWN_NOWHERE, decided, found, ideal, smaller

from recurformer.claims import decide, make_ledger
from recurformer.claims.claim import STATEMENTS
from recurformer.paper import CELLS, NUMBERS
from recurformer.render.figures_ablations import ABLATIONS
from recurformer.render.page import claims_markdown
from recurformer.results.words import (
    CONSISTENT,
    CONTRADICTED,
    FAILS_SMALL,
    MARKS,
    NOT_RUN,
    PAPER_INCONSISTENT,
    REPRODUCED,
)

TREND = CLAIMS["text/collapse-at-one"]


@pytest.mark.parametrize(
    ("sources", "verdict", "decided_by"),
    [
        ([("this study", True, True)], REPRODUCED, "this study"),
        ([("this study", False, True)], CONSISTENT, "this study"),
        ([("this study", False, False)], FAILS_SMALL, "this study"),
        ([("this study", True, False)], CONTRADICTED, "this study"),
        ([("this study", False, False), ("recorded/gpu", True, True)], REPRODUCED, "recorded/gpu"),
        ([("this study", True, True), ("recorded/gpu", True, False)], REPRODUCED, "this study"),
        ([("this study", False, True), ("recorded/cpu", False, False)], CONSISTENT, "this study"),
        ([("this study", False, True), ("recorded/gpu", True, False)], CONTRADICTED, "recorded/gpu"),
    ],
)
def test_the_strongest_evidence_decides(sources, verdict, decided_by):
    evidence = []
    for name, at_scale, holds in sources:
        frames = ideal() if holds else MUTATIONS["quality kept at one"]
        evidence.append(world(frames if at_scale else smaller(frames), name))
    decision = decide(TREND, evidence)
    assert decision.verdict == verdict
    assert decision.evidence.source == decided_by
    assert decision.files == ["baseline.csv", "hashhop.csv"]
    assert decision.seeds == 2
    assert decision.finding.samples == 400


def test_one_seed_reproduces_nothing():
    one = {kind: frame[frame["seed"] == 0] if "seed" in frame else frame for kind, frame in ideal().items()}
    decision = decide(TREND, [world(one)])
    assert (decision.verdict, decision.reason[-13:]) == (CONSISTENT, "one seed only")
    assert decide(CLAIMS["text/smaller-cache"], [world(one)]).verdict == REPRODUCED  # no training stands behind it


def test_a_claim_that_no_stage_measures_says_what_it_needs():
    decision = decided("text/parallel-branches")
    assert decision.verdict == NOT_RUN
    assert "timings" in decision.reason


def test_no_measurement_helps_a_statement_that_the_paper_itself_contradicts():
    ledger = make_ledger("default", [world(ideal())])
    by_id = {decision.claim.id: decision for decision in ledger.decisions}
    for claim in (*IMPOSSIBLE, "text/non-overlapping", "appendix/alpha", "table1/prefill/attention/cache_size"):
        assert by_id[claim].verdict == PAPER_INCONSISTENT
        assert by_id[claim].reason
    assert by_id["table4/llama2-7b/0.90/cs_10k"].verdict == REPRODUCED


def test_the_intervals_of_several_seeds_are_those_over_seeds():
    frame = ideal()["hashhop"].query("seed == 0")
    wrong = [frame["correct"].where(frame["sample"] % 3 != seed, 0) for seed in range(3)]
    seeds = pd.concat([frame.assign(seed=seed, correct=correct) for seed, correct in enumerate(wrong)])
    claim = CLAIMS["text/quality-kept"]
    decision = decide(claim, [world(ideal() | {"hashhop": seeds})])
    alone = decide(claim, [world(ideal())])
    assert decision.seeds == 3
    assert decision.finding.ours != alone.finding.ours


def test_the_ledger_counts_every_verdict_and_shows_every_claim():
    ledger = make_ledger("default", [world(ideal())])
    assert set(ledger.counts()) == set(MARKS)
    assert sum(ledger.counts().values()) == len(CELLS) + len(NUMBERS) + len(STATEMENTS)
    assert sum(ledger.counts(reviewers=True).values()) == len(
        {*ABLATIONS, *RECOVERY, *SHOWN_NOWHERE} - {"frontier"}
    )  # no claim is about it
    assert list(ledger.frame()["id"]) == list(CLAIMS)
    shown = ledger.to_dict()
    assert len(shown["claims"]) == len(CLAIMS)
    claim = next(claim for claim in shown["claims"] if claim["id"] == "table4/llama2-7b/0.90/cs_10k")
    assert claim["evidence"]["files"] == ["cache.csv"]
    assert claim["evidence"]["scale"] == "paper"
    text = claims_markdown(shown)
    assert all(claim.place in text for claim in CLAIMS.values())
    assert "0.5930 − 0.3815 = 0.2115" in text
    assert (
        "what the reviewers asked and the paper does not claim: ✓ reproduced 5, ≈ consistent 2, ? undecided 6." in text
    )


def test_what_the_reviewers_asked_is_no_verdict_on_the_paper():
    frames = smaller(MUTATIONS["settings of RA-I matter"])
    ledger = make_ledger("default", [world(frames)], [CLAIMS["reviewer/ra_i"], TREND])
    assert [decision.verdict for decision in ledger.decisions] == [FAILS_SMALL, CONSISTENT]
    assert ledger.counts() | {CONSISTENT: 0} == dict.fromkeys(MARKS, 0)
    assert ledger.counts(reviewers=True) == dict.fromkeys(MARKS, 0) | {FAILS_SMALL: 1}
    assert ledger.to_dict()["counts"] == ledger.counts()


def test_a_cell_says_the_value_under_both_readings_of_grouped_query_attention():
    frame = ideal()["cache"]
    shifted = frame.assign(ratio=frame["ratio"] + 0.2 * (frame["unit"] == "head") + 0.1)
    finding = found("table4/qwen2-0.5b/0.50/cs_10k", cache=shifted)
    assert not finding.holds
    assert finding.ours == "0.5390 (kv_group), 0.7390 (head)"
