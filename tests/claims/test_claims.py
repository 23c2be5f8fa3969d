"""The claims ledger: every test can hold and can fail, and the strongest evidence decides."""

import json
import math
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import product

import claims_world
import pandas as pd
import pytest
from claims_world import world

from recurformer.claims import Missing, all_claims, decide, make_ledger
from recurformer.claims.cells import quality
from recurformer.claims.claim import FINDINGS, QUESTIONS, STATEMENTS, Finding, Statement, fact_of
from recurformer.claims.comparisons import judge_comparisons
from recurformer.claims.pairings import Comparison
from recurformer.claims.register import REVIEWER
from recurformer.claims.text import markdown
from recurformer.paper import CELLS, NUMBERS
from recurformer.render.ablations import NEEDLE
from recurformer.render.figures.ablations import ABLATIONS
from recurformer.render.verdicts import (
    CONSISTENT,
    CONTRADICTED,
    FAILS_SMALL,
    MARKS,
    NOT_RUN,
    PAPER_INCONSISTENT,
    REPRODUCED,
    UNDECIDED,
)
from recurformer.tasks.interval import Estimate

CLAIMS = {claim.id: claim for claim in all_claims()}
TESTED = [claim for claim in CLAIMS.values() if claim.judge]
IMPOSSIBLE = {"table4/qwen2-7b/0.75/cs_10k", "table4/qwen2-7b/0.75/cs_60k"}
"""Cells that no world with a falling cache can have."""
MISSING_METHOD = {
    cell.id for cell in (*CELLS, *NUMBERS) if cell.method == "PyramidInfer" and cell.quantity in {"l_m", "h_gq"}
}
"""Claims on a method that the suite runs in small models only."""
OF_ABLATIONS = ("ablation_hashhop", "needle", "continuation")
RECOVERY = {"reviewer/recovery", "reviewer/tokens", "reviewer/equal_bytes"}


@cache
def ideal() -> dict[str, pd.DataFrame]:
    return claims_world.frames()


def with_column(kind: str, column: str, change) -> dict[str, pd.DataFrame]:
    frame = ideal()[kind]
    return ideal() | {kind: frame.assign(**{column: change(frame)})}


def decided(claim: str, **measured: pd.DataFrame):
    """The verdict where some kinds of measurements are others than in the world in which the paper is right."""
    return decide(CLAIMS[claim], [world(ideal() | measured)])


def found(claim: str, **measured: pd.DataFrame) -> Finding:
    return CLAIMS[claim].judge(world(ideal() | measured))


def recurformer_rows(frame: pd.DataFrame) -> pd.Series:
    return (frame["family"] == "mixer") & (frame["method"] == "mamba") & (frame["by"] == "ra_i")


def swapped_levels(frame: pd.DataFrame) -> pd.Series:
    return frame["level"].map({"high": "low", "low": "high", "mid": "mid"})


def away_from_the_diagonal(frame: pd.DataFrame) -> pd.Series:
    """High RA-I looks at recent tokens only, of which it skips the nearer half."""
    distance = frame["query"] - frame["key"]
    return frame["weight"].mask(frame["level"] == "high", ((distance > 3) & (distance <= 6)).astype(float))


MUTATIONS = {
    "growth": with_column("complexity", "bytes", lambda f: f["bytes"] * f["length"]),
    "mamba's peak larger": with_column(
        "complexity", "bytes",
        lambda f: f["bytes"].mask((f["mixer"] == "mamba") & (f["quantity"] == "cache_peak"), 1e15)),
    "mamba computes more": with_column("complexity", "operations", lambda f: f["operations"] * (f["mixer"] == "mamba")),
    "cache": with_column("cache", "ratio", lambda f: f["ratio"] + 0.1 * f["beta"] + 0.01),
    "cache grows more": with_column("cache", "total_bytes", lambda f: f["total_bytes"] * (1 + 5 * f["beta"]) + 1),
    "PyramidInfer keeps more": with_column("pyramidinfer", "ratio", lambda f: f["ratio"] + 0.1),
    "evicted": with_column("cache", "kv_bytes", lambda f: f["kv_bytes"] * (1 - 0.1 * f["beta"])),
    "state": with_column("cache", "conv_bytes", lambda f: f["conv_bytes"] / 2),
    "groups": with_column("cache", "heads_replaced", lambda f: f["kv_heads_freed"] * 3),
    "length": with_column("memory", "l_m", lambda f: f["l_m"] * (2.5 - f["beta"])),
    "quality lost": with_column("hashhop", "correct", lambda f: (f["correct"] * (f["beta"] == 0) / 2).astype(int)),
    "far links are lost": with_column("hashhop", "correct", lambda f: f["correct"].clip(upper=2)),
    "quality kept at one": with_column("hashhop", "correct", lambda f: f["hops"]),
    "perplexity": with_column("perplexity", "negative_log_likelihood", lambda f: f["negative_log_likelihood"] * 1.2),
    "perplexity of the converted": with_column(
        "perplexity", "negative_log_likelihood",
        lambda f: f["negative_log_likelihood"].where((f["beta"] == 0) | (f["stage"] != "trained"), 7000)),
    "no harm by conversion": with_column(
        "perplexity", "negative_log_likelihood",
        lambda f: f["negative_log_likelihood"].where(f["stage"] != "converted", 2200)),
    "loss": with_column("metrics", "loss", lambda f: 2.5 + f["beta"]),
    "contribution": with_column("contribution", "mean", lambda f: f["mean"].where(f["tokens"] != "first", 1.0)),
    "contribution of the others": with_column("contribution", "mean", lambda f: f["mean"] * 2),
    "contribution interval": with_column("contribution", "high", lambda f: f["high"] * 3 + 1),
    "no recent heads": with_column("profile", "rr", lambda f: 0.1 + 0 * f["rr"]),
    "only recent heads": with_column("profile", "rr", lambda f: 0.9 + 0 * f["rr"]),
    "even attention": with_column("sink", "value", lambda f: 1.0 + 0 * f["value"]),
    "only the L1 norm of the first value is higher": with_column(
        "sink", "value", lambda f: f["value"].mask((f["quantity"] == "value_norm_l1") & (f["key"] == 0), 20.0)),
    "the first value varies as the others do": with_column(
        "sink", "value", lambda f: f["value"].mask(f["quantity"] == "value_spread", 0.5)),
    "the gate leaves the first value as it is": with_column(
        "influence", "norm", lambda f: f["norm"].mask(f["key"] == 0, 0.1)),
    "recent, but far from the diagonal": with_column("attention_map", "weight", away_from_the_diagonal),
    "levels": with_column("attention_map", "level", swapped_levels),
    "mqar without attention": with_column("mqar", "correct", lambda f: f["queries"]),
    "mqar with some heads": with_column(
        "mqar", "correct", lambda f: f["correct"].where((f["beta"] == 0) | (f["beta"] == 1), 500)),
    "hops lost": with_column("ablation_hashhop", "correct", lambda f: f["correct"].mask(recurformer_rows(f), 0)),
    "hops lost in the retained heads alone": with_column(
        "ablation_hashhop", "correct", lambda f: f["correct"].mask(f["family"] == "combined", 0)),
    "hops lost at one size": with_column(
        "hashhop_sizes", "correct", lambda f: f["correct"].mask(recurformer_rows(f) & (f["size"] == 1536), 0)),
    "needles lost": with_column("needle", "correct", lambda f: f["correct"].mask(recurformer_rows(f), 0)),
    "loss grows": with_column(
        "continuation", "negative_log_likelihood",
        lambda f: f["negative_log_likelihood"] + f["position"].where(recurformer_rows(f), 0)),
    "heads that look back are chosen": with_column(
        "head_scores", "score", lambda f: f["score"].where(f["by"] != "retrieval", -f["score"])),
    "settings of RA-I matter": with_column(
        "ra_i_settings", "shared", lambda f: f["shared"].where(f["shared"] == f["selected"], 50)),
    "nothing comes back": with_column(
        "recovery", "negative_log_likelihood", lambda f: f["negative_log_likelihood"] + (f["beta"] > 0)),
    "random weights learn as fast": with_column(
        "recovery", "negative_log_likelihood",
        lambda f: f["negative_log_likelihood"].mask(f["arm"] == "scratch_98k", 2)),
    "the window is nearer": with_column(
        "recovery", "divergence", lambda f: f["divergence"].mask(f["mixer"] == "window", 0.001)),
}  # fmt: skip
"""Worlds in which the paper is wrong in one respect."""


WORLDS = {"the paper is right": ideal()} | MUTATIONS
CHANGED = {
    name: next(kind for kind in frames if frames[kind] is not ideal()[kind]) for name, frames in MUTATIONS.items()
}
"""Mutation -> the kind of measurement that it changes."""


@cache
def judged(claim: str, name: str) -> bool | None:
    """Whether a claim holds in a world; None where that world cannot tell."""
    try:
        return CLAIMS[claim].judge(world(WORLDS[name])).holds
    except Missing:
        return None


@cache
def mutations_of(claim: str) -> list[str]:
    """The mutations that change what the claim looks at."""
    evidence = world(ideal())
    with suppress(Missing):
        CLAIMS[claim].judge(evidence)
    return [name for name, kind in CHANGED.items() if f"{kind}.csv" in evidence.used]


def test_every_printed_number_every_statement_and_every_figure_of_the_ablations_is_a_claim():
    asked = RECOVERY | {name.replace("ablation_", "reviewer/") for name in ABLATIONS}
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
        finding = claim.judge(world(ideal()))
        assert finding.holds and finding.at_scale and finding.ours, finding
    assert any(judged(claim.id, name) is False for name in mutations_of(claim.id))


def test_every_claim_of_the_paper_belongs_to_a_finding():
    assert {fact_of(claim.id) for claim in all_claims() if claim.kind != REVIEWER} == set(FINDINGS)


def test_a_claim_on_measurements_that_exist_is_one_entry(monkeypatch):
    entry = Statement(place="Section 9", kind="analytic", quote="a toy", judge="caches.constant",
        parameters={"allowed": 0.1}, test="its cache is constant", tolerance="{allowed:g} at most")  # fmt: skip
    monkeypatch.setitem(STATEMENTS, "text/toy", entry)
    toy = next(claim for claim in all_claims() if claim.id == "text/toy")
    assert (toy.statement, toy.tolerance) == ("“a toy”", "0.1 at most")
    assert decide(toy, [world(ideal())]).verdict == REPRODUCED


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_breaks_a_claim(name):
    touched = (claim.id for claim in TESTED if claim.id not in IMPOSSIBLE and name in mutations_of(claim.id))
    assert any(judged(claim, name) is False for claim in touched)


FALLS, UNKNOWN = "may have fallen by 0.20 nats", "has flattened is not known"


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
        ("reviewer/pareto", "ablation_hashhop", "correct", 15, "reaches 0.938 (h_gq on HashHop); a comparison needs"),
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
            ("reviewer/pareto", "ablation_hashhop"),
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


def falling(kind: str, arms) -> dict[str, pd.DataFrame]:
    """A world in which the losses of some trainings still fall."""
    return with_column(kind, "fall", lambda f: f["fall"].mask(arms(f), 0.2))


@pytest.mark.parametrize(
    ("claim", "kind", "arms"),
    [
        ("text/quality-kept", "hashhop", lambda f: f["beta"] > 0),
        ("figure4/attention-necessary", "mqar", lambda f: f["beta"] < 1),
        ("figure4/poor-without-attention", "mqar", lambda f: f["beta"] < 1),
        ("reviewer/mixers", "ablation_hashhop", recurformer_rows),
        ("reviewer/sizes", "hashhop_sizes", recurformer_rows),
    ],
)
def test_a_training_that_keeps_up_needs_no_more_of_it(claim, kind, arms):
    assert decide(CLAIMS[claim], [world(falling(kind, arms))]).verdict in (REPRODUCED, UNDECIDED)
    assert CLAIMS[claim].judge(world(falling(kind, arms))).holds


@pytest.mark.parametrize(
    ("claim", "kind", "lost"),
    [
        ("text/quality-kept", "hashhop", lambda f: f["beta"] > 0),
        ("figure4/attention-necessary", "mqar", lambda f: (f["beta"] > 0) & (f["beta"] < 1)),
        ("reviewer/needle", "needle", recurformer_rows),
    ],
)
def test_a_training_that_falls_short_is_judged_at_its_end(claim, kind, lost):
    short = with_column(kind, "correct", lambda f: f["correct"].mask(lost(f), 0))
    assert not CLAIMS[claim].judge(world(short)).holds
    unfinished = short | {kind: short[kind].assign(fall=short[kind]["fall"].mask(lost(short[kind]), 0.2))}
    decision = decide(CLAIMS[claim], [world(unfinished)])
    assert (decision.verdict, FALLS in decision.reason) == (UNDECIDED, True)


@pytest.mark.parametrize(
    ("claim", "kind", "column", "lost", "value"),
    [
        ("text/quality-kept", "hashhop", "correct", lambda f: f["beta"] > 0, 0),
        ("text/collapse-at-one", "hashhop", "correct", lambda f: (f["beta"] == 1) & (f["model"] == "llama2-7b"), 16),
        ("text/perplexity-comparable", "perplexity", "negative_log_likelihood",
            lambda f: (f["beta"] > 0) & (f["stage"] == "trained"), 7000),
        ("figure3/converge", "metrics", "loss", lambda f: f["beta"] > 0, 5.0),
        ("figure4/poor-without-attention", "mqar", "correct", lambda f: f["beta"] == 1, 900),
        ("figure4/attention-necessary", "mqar", "correct", lambda f: f["beta"] > 0, 1000),
        ("reviewer/length", "continuation", "negative_log_likelihood",
            lambda f: recurformer_rows(f) & (f["position"] > 0), 200.0),
    ],
)  # fmt: skip
def test_a_failure_at_its_end_counts_whatever_another_arm_still_learns(claim, kind, column, lost, value):
    """Two arms fail, and the losses of one of them and of all others still fall."""
    frame = with_column(kind, column, lambda f: f[column].mask(lost(f), value))[kind]
    ended = frame["model"] == "llama2-7b" if "model" in frame else frame["beta"] == 0
    unfinished = frame.assign(fall=frame["fall"].where(ended, 0.2))
    finding = found(claim, **{kind: unfinished})
    assert finding.decided and not finding.holds


def test_what_failed_with_no_head_kept_needs_no_training_of_that_arm():
    """Where no share of retained heads learns MQAR, all heads replaced may learn on."""
    frame = ideal()["mqar"]
    short = frame.assign(correct=frame["correct"].mask(frame["beta"] > 0, 10))
    falling_at_one = short.assign(fall=short["fall"].mask(short["beta"] == 1, 0.2))
    finding = found("figure4/attention-necessary", mqar=falling_at_one)
    assert finding.decided and not finding.holds


def test_one_beta_whose_loss_still_falls_leaves_the_length_open():
    frame = ideal()["continuation"]
    second = frame[recurformer_rows(frame)].assign(setting=0.25, fall=0.2)
    finding = found("reviewer/length", continuation=pd.concat([second, frame], ignore_index=True))
    assert finding.holds and not finding.decided
    assert "at β 0.25" in finding.reason and "β 0.5)" in finding.ours


def test_a_size_without_its_original_decides_nothing():
    frame = ideal()["hashhop_sizes"]
    alone = frame[(frame["family"] != "original") | (frame["size"] != 1536)]
    assert found("reviewer/sizes", hashhop_sizes=alone).holds
    alone = frame[frame["family"] != "original"]
    assert decided("reviewer/sizes", hashhop_sizes=alone).verdict == NOT_RUN


def test_a_mean_over_beta_is_open_with_one_of_its_comparisons():
    """Left out, the open β of +0.4 would turn the mean of +0.15 into the -0.1 of the other."""

    def one(beta: float, ours: float, fall: float) -> Comparison:
        theirs = Estimate(0.5, 0.49, 0.51)
        sides = Estimate(ours, ours - 0.01, ours + 0.01), theirs
        return Comparison(NEEDLE, "llama2-7b", "h2o", beta, *sides, 8, (0.0, fall), ())

    pairs = [one(0.25, 0.9, 0.2), one(0.5, 0.4, 0.0)]
    mean, each = (judge_comparisons(pairs, by_beta=by_beta) for by_beta in (False, True))
    assert (mean.holds, mean.decided) == (True, False)
    assert (each.holds, each.decided) == (False, True)


@pytest.mark.parametrize(("samples", "decided"), [(2, False), (200, True)])
def test_a_wide_interval_reaches_a_printed_number_for_want_of_samples(samples, decided):
    frame = ideal()["hashhop"]
    few = frame.assign(correct=frame["hops"].where(frame["sample"] % 2 == 0, 0))
    few = few[few["sample"] < samples]
    cell = replace(next(cell for cell in CELLS if cell.id == "table4/llama2-7b/0.90/h_gq"), printed="0.500")
    finding = quality(world(ideal() | {"hashhop": few}), cell, allowed=0.05)
    assert (finding.holds, finding.decided) == (True, decided)


@pytest.mark.parametrize(
    ("chosen", "kept", "holds", "decided"),
    [(4, 3, False, False), (4, 4, True, False), (10, 9, True, True), (10, 8, False, True)],
)
def test_few_chosen_heads_say_nothing_about_the_settings_of_ra_i(chosen, kept, holds, decided):
    frame = ideal()["ra_i_settings"]
    shared = pd.Series(chosen, frame.index).where(frame["default"], kept)
    finding = found("reviewer/ra_i", ra_i_settings=frame.assign(selected=chosen, shared=shared))
    assert (finding.holds, finding.decided) == (holds, decided)


def test_a_decided_finding_goes_before_one_that_is_not():
    findings = {"open": Finding(True, "", False, decided=False, reason="few"), "sure": Finding(True, "", False)}
    judged = replace(CLAIMS["reviewer/needle"], judge=lambda evidence: findings[evidence.source])
    assert decide(judged, [world(ideal(), "open"), world(ideal(), "sure")]).verdict == CONSISTENT


def test_what_no_training_stands_behind_has_not_flattened():
    with pytest.raises(ValueError, match="no training is known for cache measurements"):
        world(ideal()).flattened("cache")


@pytest.mark.parametrize(
    ("column", "change", "verdict", "why"),
    [
        ("trained", lambda f: f["trained"] & (f["method"] != "linear"), NOT_RUN, "linear attention on the same heads"),
        ("fall", lambda f: f["fall"].mask(f["method"] == "linear", 0.2), UNDECIDED,
            f"linear attention at β 0.5: the loss of its training {FALLS}"),
    ],
)  # fmt: skip
def test_a_mixer_that_was_not_trained_to_its_end_is_no_rival(column, change, verdict, why):
    rivals = {kind: with_column(kind, column, change)[kind] for kind in OF_ABLATIONS}
    decision = decided("reviewer/mixers", **rivals)
    assert decision.verdict == verdict
    assert why in decision.reason


def test_a_comparison_that_is_lost_for_good_outweighs_one_that_is_not():
    rows = ideal()["needle"]
    frames = ideal() | {"needle": rows.assign(correct=rows["correct"].mask(recurformer_rows(rows), 0))}
    unfinished = recurformer_rows(rows) & (rows["model"] == "qwen2-7b")
    frames["needle"] = frames["needle"].assign(fall=rows["fall"].mask(unfinished, 0.2))
    finding = CLAIMS["reviewer/needle"].judge(world(frames))
    assert not finding.holds and FALLS not in finding.reason


def smaller(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The same by a small model with the paper's names taken away."""
    names = {"llama2-7b": "small-mha", "qwen2-7b": "small-gqa", "qwen2-0.5b": "smaller-gqa"}
    return {
        kind: frame.assign(model=frame["model"].map(names)) if "model" in frame else frame
        for kind, frame in frames.items()
    }


def test_what_the_intervals_do_not_decide_is_not_decided():
    halved = with_column("needle", "correct", lambda f: f["correct"].mask(recurformer_rows(f), 0).mask(
        recurformer_rows(f) & (f["sample"] % 2 == 0), 1))  # fmt: skip
    decision = decide(CLAIMS["reviewer/needle"], [world(halved)])
    assert decision.verdict == UNDECIDED
    assert decision.finding.holds and not decision.finding.decided
    assert decision.reason.startswith("within the 95 % intervals of both; it needs more samples")


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
    assert decision.evidence.used == {"hashhop.csv", "baseline.csv"}
    assert decision.evidence.seeds == {0, 1}
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
    frame = ideal()["hashhop"]
    wrong = [frame["correct"].where(frame["sample"] % 3 != seed, 0) for seed in range(3)]
    seeds = pd.concat([frame.assign(seed=seed, correct=correct) for seed, correct in enumerate(wrong)])
    claim = CLAIMS["text/quality-kept"]
    decision = decide(claim, [world(ideal() | {"hashhop": seeds})])
    alone = decide(claim, [world(ideal())])
    assert decision.evidence.seeds == {0, 1, 2}
    assert decision.finding.ours != alone.finding.ours


def test_the_ledger_counts_every_verdict_and_shows_every_claim():
    ledger = make_ledger("default", [world(ideal())])
    assert set(ledger.counts()) == set(MARKS)
    assert sum(ledger.counts().values()) == len(CELLS) + len(NUMBERS) + len(STATEMENTS)
    assert sum(ledger.counts(reviewers=True).values()) == len(ABLATIONS) + len(RECOVERY)
    assert list(ledger.frame()["id"]) == list(CLAIMS)
    shown = ledger.to_dict()
    assert len(shown["claims"]) == len(CLAIMS)
    claim = next(claim for claim in shown["claims"] if claim["id"] == "table4/llama2-7b/0.90/cs_10k")
    assert claim["evidence"]["files"] == ["cache.csv"]
    assert claim["evidence"]["scale"] == "paper"
    text = markdown(ledger)
    assert all(claim.place in text for claim in CLAIMS.values())
    assert "0.3815 → 0.5930, larger by 0.2115" in text
    assert (
        "what the reviewers asked and the paper does not claim: ✓ reproduced 5, ≈ consistent 1, ? undecided 6." in text
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


@pytest.mark.parametrize(
    ("claim", "kind", "setting", "value"),
    [
        ("text/equation-3", "cache", "mamba_d_state", "8"),
        ("table4/llama2-7b/0.50/cs_10k", "cache", "mamba_expand", "1"),
        ("table4/llama2-7b/0.50/l_m", "memory", "memory_gib", "139"),
        ("table4/llama2-7b/0.90/h_gq", "hashhop", "task_characters", "600"),
        ("text/collapse-at-one", "hashhop", "task_hops", "8"),
        ("figure4/poor-without-attention", "mqar", "hidden_size", "64"),
        ("text/recency-aware-heads", "profile", "tokens", "256"),
        ("text/first-contributes-less", "contribution", "tokens", "64"),
    ],
)
def test_a_paper_models_name_at_other_sizes_is_not_the_papers_scale(claim, kind, setting, value):
    right = decided(claim)
    other = decide(CLAIMS[claim], [world(ideal(), **{kind: {setting: value}})])
    assert right.finding.at_scale
    assert other.finding is None or not other.finding.at_scale
    if not claim.startswith(("text/", "figure")) or claim == "text/equation-3":
        assert other.verdict == NOT_RUN, "a printed number is not decided at another size"
    recorded = world(ideal(), "recorded/card")
    both = decide(CLAIMS[claim], [world(ideal(), **{kind: {setting: value}}), recorded])
    assert both.evidence.source == "recorded/card"


def only(*models: str) -> dict[str, pd.DataFrame]:
    return {kind: f[f["model"].isin([*models, "mqar"])] if "model" in f else f for kind, f in ideal().items()}


@pytest.mark.parametrize("claim", ["text/quality-kept", "text/collapse-at-one", "text/no-eviction"])
def test_some_of_the_papers_models_are_not_all_of_them(claim):
    decision = decide(CLAIMS[claim], [world(only("qwen2-0.5b", "qwen2-7b"))])
    assert decision.verdict == CONSISTENT


EVICTED = {"eviction-h2o-", "eviction-snapkv-", "eviction-pyramidinfer_paper-"}
RA_I = {"original-full-", "mixer-mamba-ra_i"}
REPLACED = {"mixer-window-ra_i", "mixer-linear-ra_i", "layers-mamba-ra_i"}


@pytest.mark.parametrize(
    ("claim", "kinds", "things", "seeds"),
    [
        ("pareto", OF_ABLATIONS[:1], RA_I | EVICTED | REPLACED, {0}),
        ("needle", ("needle",), RA_I | EVICTED, {0}),
        ("granularity", OF_ABLATIONS, RA_I | {"layers-mamba-ra_i"}, {0}),
        ("selectors", OF_ABLATIONS, RA_I | {"mixer-mamba-random"}, {0, 1, 2}),
        ("length", ("continuation",), RA_I, {0}),
        ("sizes", ("hashhop_sizes",), RA_I, {0}),
    ],
)
def test_the_evidence_of_a_reviewers_claim_is_what_its_judge_compared(claim, kinds, things, seeds):
    named = {
        kind: frame.assign(file=frame["family"] + "-" + frame["method"] + "-" + frame["by"] + f"/{kind}.csv")
        if "family" in frame else frame
        for kind, frame in ideal().items()
    }  # fmt: skip
    evidence = decide(CLAIMS[f"reviewer/{claim}"], [world(named)]).evidence
    assert evidence.used == {f"{thing}/{kind}.csv" for thing, kind in product(things, kinds)}
    assert evidence.seeds == seeds


def test_a_score_between_two_budgets_rests_on_these_two():
    frame = ideal()["needle"]
    budgets = pd.concat([frame, *(
        frame[(frame["method"] == "h2o") & (frame["setting"] == 0.2)].assign(setting=share, ratio=share)
        for share in (0.1, 0.3, 0.9)
    )])  # fmt: skip
    placed = budgets.assign(file=budgets["method"] + budgets["setting"].astype(str) + "/needle.csv").reset_index(
        drop=True
    )
    used = decided("reviewer/needle", needle=placed).evidence.used
    assert {file for file in used if "h2o" in file} == {"h2o0.3/needle.csv", "h2o0.8/needle.csv"}


def test_heads_are_no_samples():
    scored = ideal()["head_scores"]
    scored = pd.concat([scored, scored[scored["by"] == "ra_i"].assign(by="random", seed=1)], ignore_index=True)
    decision = decided("reviewer/head_maps", head_scores=scored)
    assert decision.finding.samples is None
    assert "64 heads" in decision.finding.ours
    assert not decision.evidence.seeds


def test_a_sentence_about_certain_models_is_not_decided_by_others():
    decision = decide(CLAIMS["text/first-contributes-less"], [world(only("qwen2-7b"))])
    assert decision.verdict == NOT_RUN
    assert "the sentence is about Qwen2-0.5B and Llama2-7B" in decision.reason
    assert decide(CLAIMS["text/first-contributes-less-qwen2-7b"], [world(only("qwen2-7b"))]).verdict == REPRODUCED


@pytest.mark.parametrize(("models", "kind"), [(["qwen2-0.5b", "qwen2-7b"], "GQA"), (["llama2-7b"], "MHA")])
def test_a_sentence_about_both_kinds_of_attention_needs_both(models, kind):
    decision = decide(CLAIMS["text/collapse-in-mha-and-gqa"], [world(only(*models))])
    assert decision.verdict == NOT_RUN
    assert f"models with {kind} only" in decision.reason


@pytest.mark.parametrize(("kv_heads", "verdict"), [("2", CONSISTENT), ("8", NOT_RUN), (None, NOT_RUN)])
def test_the_kind_of_attention_of_a_small_model_stands_in_the_record_of_its_backbone(kv_heads, verdict, tmp_path):
    frames = {kind: smaller(ideal())[kind] for kind in ("hashhop", "baseline")}
    for model in ("small-mha", "small-gqa"):
        heads = {"heads": "8", "kv_heads": "8" if model == "small-mha" else kv_heads}
        made = {"stage": "backbone", "settings": heads, "outputs": ["baseline.csv"]}
        (tmp_path / model).mkdir()
        (tmp_path / model / "run.json").write_text(json.dumps({"run": model, "argv": [], "inputs": [], **made}))
    chosen = {kind: frame[frame["model"] != "smaller-gqa"] for kind, frame in frames.items()}
    placed = chosen["baseline"].assign(file=lambda f: str(tmp_path) + "/" + f["model"] + "/baseline.csv")
    assert decide(CLAIMS["text/collapse-in-mha-and-gqa"], [world(chosen | {"baseline": placed})]).verdict == verdict


@pytest.mark.parametrize(
    ("quantity", "verdict"), [("value_norm_l1", NOT_RUN), ("value_norm", NOT_RUN), ("attention", REPRODUCED)]
)
def test_a_sentence_about_two_norms_needs_both(quantity, verdict):
    sink = ideal()["sink"]
    decision = decide(CLAIMS["figure2/value-norm"], [world(ideal() | {"sink": sink[sink["quantity"] != quantity]})])
    assert decision.verdict == verdict


@pytest.mark.parametrize("claim", ["table1/prefill/attention/cache_peak", "text/constant-cache", "text/smaller-cache"])
@pytest.mark.parametrize(
    ("width", "verdict"), [(4096, REPRODUCED), (896, REPRODUCED), (128, CONSISTENT), (None, CONSISTENT)]
)
def test_growth_is_at_the_papers_scale_where_the_measured_model_is_as_wide(claim, width, verdict):
    frame = ideal()["complexity"].drop(columns="width")
    measured = frame if width is None else frame.assign(width=width)
    assert decided(claim, complexity=measured).verdict == verdict


def test_the_length_at_which_the_caches_are_equal_is_said_and_no_shorter_one_is_judged():
    """Of a block of 20 numbers a channel beside keys and values: 20 tokens."""
    frame = ideal()["complexity"]
    frame = pd.concat([frame[frame["length"] == 1024].assign(length=16), frame])
    attention, cache = frame["mixer"] == "attention", frame["quantity"] == "cache_size"
    counted = (1024 * frame["length"]).where(attention, 20480).where(cache, frame["bytes"])
    measured = frame.assign(bytes=counted.mask(~attention & ~cache & (frame["length"] == 16), 1e15))
    finding = found("text/smaller-cache", complexity=measured)
    assert finding.holds
    assert finding.ours == (
        "at most 0.02 of attention's at the measured lengths from 1,024 tokens on; counted per token, attention's "
        "cache is the smaller one below 20 tokens"
    )


def test_lengths_below_that_at_which_the_caches_are_equal_decide_nothing():
    cache = with_column("complexity", "bytes", lambda f: f["bytes"].where(f["mixer"] != "mamba", 1e15))
    decision = decide(CLAIMS["text/smaller-cache"], [world(cache)])
    assert (decision.verdict, "no measured length is beyond" in decision.reason) == (UNDECIDED, True)


def test_what_holds_by_definition_is_counted_apart():
    ledger = make_ledger("default", [world(ideal())])
    one = {cell.id for cell in CELLS if cell.printed == "1.0000"}
    assert ledger.by_definition() == len(one) == 12
    assert f"{len(one)} of the reproduced are so by definition" in markdown(ledger)
    assert "rest on" not in markdown(ledger)
    borrowed = make_ledger("smoke", [world(ideal(), "recorded/card")])
    behind = sum(decision.evidence is not None for decision in borrowed.decisions)
    assert f"{behind} verdicts rest on recorded/card, not on this study." in markdown(borrowed)
