"""What measurements without power leave open: trainings that still fall, few samples, wide intervals."""

from dataclasses import replace

import pandas as pd
import pytest
from claims_world import world
from mutated_worlds import CLAIMS, FALLS, OF_ABLATIONS, decided, found, ideal, recurformer_rows, with_column

from recurformer.claims import decide
from recurformer.claims.claim import OPEN, Finding
from recurformer.claims.comparisons import Comparison, judge_comparisons
from recurformer.claims.numbers import quality
from recurformer.data.interval import Estimate
from recurformer.paper import CELLS
from recurformer.results.scores import NEEDLE
from recurformer.results.words import (
    CONSISTENT,
    CONTRADICTED,
    NOT_RUN,
    REPRODUCED,
    UNDECIDED,
)


def falling(kind: str, arms) -> dict[str, pd.DataFrame]:
    """A world in which the losses of some trainings still fall."""
    return with_column(kind, "fall", lambda f: f["fall"].mask(arms(f), 0.2))


@pytest.mark.parametrize(
    ("claim", "kind", "arms"),
    [
        ("text/quality-kept", "hashhop", lambda f: f["beta"] > 0),
        ("figure4/attention-necessary", "mqar", lambda f: f["beta"] < 1),
        ("figure4/poor-without-attention", "mqar", lambda f: f["beta"] < 1),
        ("reviewer/mixers", "compared_hashhop", recurformer_rows),
        ("reviewer/sizes", "hashhop_sizes", recurformer_rows),
        ("reviewer/lm-eval", "ablation_lm_eval", recurformer_rows),
    ],
)
def test_a_training_that_keeps_up_needs_no_more_of_it(claim, kind, arms):
    assert decide(CLAIMS[claim], [world(falling(kind, arms))]).verdict in (REPRODUCED, CONSISTENT, UNDECIDED)
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
    """Where no fraction of retained heads learns MQAR, all heads replaced may learn on."""
    frame = ideal()["mqar"]
    short = frame.assign(correct=frame["correct"].mask(frame["beta"] > 0, 10))
    falling_at_one = short.assign(fall=short["fall"].mask(short["beta"] == 1, 0.2))
    finding = found("figure4/attention-necessary", mqar=falling_at_one)
    assert finding.decided and not finding.holds


@pytest.mark.parametrize(("steps", "decided"), [(450, False), (900, True)])
def test_who_fails_after_twice_the_steps_has_had_the_last_word(steps, decided):
    made = ideal()
    mqar = made["mqar"].assign(fall=made["mqar"]["fall"].mask(made["mqar"]["beta"] == 1, 0.2))
    apart = made | {"mqar": mqar.assign(file=mqar["file"].mask(mqar["beta"] == 1, "again.csv"))}
    evidence = world(apart, mqar={"training_steps": "450"})
    evidence.settings["again.csv"] = evidence.settings["mqar.csv"] | {"training_steps": str(steps)}
    for claim in ("figure4/poor-without-attention", "figure4/attention-necessary"):
        decision = decide(CLAIMS[claim], [evidence])
        assert (decision.verdict != UNDECIDED) is decided
        assert ("twice the steps" in decision.reason) is decided


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
    of_one_model = {"needle": [0]}
    findings = {"open": Finding(True, "", of_one_model, still_open="few"), "sure": Finding(True, "", of_one_model)}
    judged = replace(CLAIMS["reviewer/needle"], judge=lambda evidence: findings[evidence.source])
    assert decide(judged, [world(ideal(), "open"), world(ideal(), "sure")]).verdict == CONSISTENT
    findings["open"] = replace(findings["open"], tokens=10**6)
    assert decide(judged, [world(ideal(), "open"), world(ideal(), "sure")]).verdict == UNDECIDED, "the longest training"


def test_what_no_training_stands_behind_has_not_flattened():
    with pytest.raises(ValueError, match="no training is known for cache measurements"):
        world(ideal()).flattened("cache")


@pytest.mark.parametrize(
    ("value", "samples", "task", "verdict", "why"),
    [
        (0.9, 1000, "hellaswag", CONSISTENT, "one seed"),
        (0.9, 20, "hellaswag", UNDECIDED, OPEN),
        (0.3, 1000, "hellaswag", CONTRADICTED, ""),
        (0.3, 1000, "winogrande", CONSISTENT, "one seed"),
    ],
)
def test_few_samples_and_a_task_that_the_original_guesses_decide_nothing_about_lm_eval(
    value, samples, task, verdict, why
):
    rows = ideal()["ablation_lm_eval"]
    ours = rows["value"].mask(recurformer_rows(rows) & (rows["task"] == task), value)
    decision = decided("reviewer/lm-eval", ablation_lm_eval=rows.assign(value=ours, samples=samples))
    assert (decision.verdict, why in decision.reason) == (verdict, True)


@pytest.mark.parametrize(("task", "verdict"), [("winogrande", UNDECIDED), ("passkey", NOT_RUN)])
def test_tasks_that_the_original_guesses_and_own_tasks_are_no_evidence_alone(task, verdict):
    rows = ideal()["ablation_lm_eval"]
    alone = rows[rows["task"] == "winogrande"].assign(task=task)
    decision = decided("reviewer/lm-eval", ablation_lm_eval=alone)
    assert decision.verdict == verdict
    assert f"{task} acc: RecurFormer 0.5, the original 0.5" in decision.reason


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


def test_what_the_intervals_do_not_decide_is_not_decided():
    halved = with_column("needle", "correct", lambda f: f["correct"].mask(recurformer_rows(f), 0).mask(
        recurformer_rows(f) & (f["sample"] % 2 == 0), 1))  # fmt: skip
    decision = decide(CLAIMS["reviewer/needle"], [world(halved)])
    assert decision.verdict == UNDECIDED
    assert decision.finding.holds and not decision.finding.decided
    assert decision.reason.startswith(f"{OPEN}; it needs more samples")
