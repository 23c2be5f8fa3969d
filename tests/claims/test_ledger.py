"""The strongest evidence decides, at which scale and on what it rests; and the ledger counts and shows it."""

import json
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest
from mutated_worlds import CLAIMS, IMPOSSIBLE, MUTATIONS, ideal, with_column

from recurformer.claims.claim import QUESTIONS, STATEMENTS, Finding
from recurformer.claims.comparisons import Comparison, comparisons, judge_comparisons
from recurformer.claims.evidence import THIS_STUDY, Missing, Undecided
from recurformer.claims.ledger import decide, from_recordings, make_ledger
from recurformer.claims.numbers import quality
from recurformer.data.interval import Estimate, bounded_mean
from recurformer.paper import CELLS, NUMBERS
from recurformer.render.page import claims_markdown
from recurformer.results.learned import FALL
from recurformer.results.scores import CONTINUATION, NEEDLE, RECALL, at_cache, less, scores
from recurformer.results.words import (
    CONSISTENT,
    CONTRADICTED,
    FAILS_SMALL,
    MARKS,
    NOT_RUN,
    PAPER_INCONSISTENT,
    REPRODUCED,
    UNDECIDED,
)
from tests.worlds import SMALL, smaller, world

TREND = CLAIMS["text/collapse-at-one"]


def decided(claim: str, **measured: pd.DataFrame):
    """The verdict where some kinds of measurements are others than in the world in which the paper is right."""
    return decide(CLAIMS[claim], [world(ideal() | measured)])


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
    assert (decision.seeds, decision.finding.samples) == (2, 500)


def test_a_decided_finding_goes_before_one_that_is_not():
    of_one_model = {"needle": [0]}
    findings = {"open": Finding(True, "", of_one_model, still_open="few"), "sure": Finding(True, "", of_one_model)}
    judged = replace(CLAIMS["reviewer/needle"], judge=lambda evidence: findings[evidence.source])
    assert decide(judged, [world(ideal(), "open"), world(ideal(), "sure")]).verdict == CONSISTENT
    findings["open"] = replace(findings["open"], tokens=10**6)
    assert decide(judged, [world(ideal(), "open"), world(ideal(), "sure")]).verdict == UNDECIDED, "the longest training"


def test_equal_recordings_that_decide_differently_leave_a_claim_open():
    findings = {name: Finding(name != "b", f"said by {name}", {"needle": [0]}) for name in (THIS_STUDY, "a", "b")}
    judged = replace(CLAIMS["reviewer/needle"], judge=lambda evidence: findings[evidence.source])
    own, one, other = (world(ideal(), name) for name in findings)
    decision = decide(judged, [one, other])
    otherwise = "otherwise in b: said by b (fails)"
    assert (decision.verdict, decision.reason.split("; ")[0]) == (UNDECIDED, otherwise)
    assert decide(judged, [own, other]).verdict == CONSISTENT, "a study's own measurements come first"
    findings["a"] = replace(findings["a"], tokens=1)
    decision = decide(judged, [one, other])
    assert (decision.verdict, decision.reason) == (CONSISTENT, otherwise), "the longest training; the other is told"


def test_one_seed_reproduces_nothing():
    one = {kind: frame[frame["seed"] == 0] if "seed" in frame else frame for kind, frame in ideal().items()}
    decision = decide(TREND, [world(one)])
    assert (decision.verdict, decision.reason[-13:]) == (CONSISTENT, "one seed only")
    assert decide(CLAIMS["text/smaller-cache"], [world(one)]).verdict == REPRODUCED  # no training stands behind it


def test_an_original_that_nobody_trained_has_no_seed_of_a_training():
    rows = ideal()["continuation"]
    untouched = rows["family"].eq("original") & rows["trained"].eq(False)
    assert untouched.any() and not untouched.all()
    evidence = world(ideal() | {"continuation": rows.assign(seed=rows["seed"].mask(untouched, 9))})
    assert evidence.seeds({"continuation": rows.index}) == rows["seed"][~untouched].nunique()
    assert evidence.seeds({"continuation": rows.index[untouched]}) == 0


def test_the_intervals_of_several_seeds_are_those_over_seeds():
    frame = ideal()["hashhop"].query("seed == 0")
    wrong = [frame["correct"].where(frame["sample"] % 3 != seed, 0) for seed in range(3)]
    seeds = pd.concat([frame.assign(seed=seed, correct=correct) for seed, correct in enumerate(wrong)])
    decision = decided("text/quality-kept", hashhop=seeds)
    assert decision.seeds == 3
    assert decision.finding.ours != decided("text/quality-kept").finding.ours


def test_the_seeds_and_samples_of_a_claim_are_those_of_its_own_fraction_of_heads():
    frame = ideal()["hashhop"]
    fewer = frame[(frame["seed"] == 0) | (frame["setting"] != 1) | (frame["family"] == "original")]
    alone, kept = (decided(f"text/{claim}", hashhop=fewer) for claim in ("collapse-at-one", "quality-kept"))
    assert (alone.seeds, kept.seeds) == (1, 2)
    assert 2 * alone.finding.samples == kept.finding.samples


def test_one_training_at_a_rate_of_its_own_is_one_seed():
    """However many trainings other rates had: the claim is decided by the best."""
    frame = ideal()["mqar"]
    at_one = (frame["beta"] == 1) & (frame["learning_rate"] == 0.001) & (frame["seed"] == 0)
    longer = frame[at_one].assign(learning_rate=0.002, correct=frame["queries"])
    found = [decided("figure4/attention-necessary", mqar=pd.concat(rows)) for rows in ([frame], [frame, longer])]
    assert [one.seeds for one in found] == [2, 1] and [one.finding.holds for one in found] == [True, False]


@pytest.mark.parametrize(("steps", "remark"), [(450, "same steps"), (900, "2 times the steps")])
@pytest.mark.parametrize(("fall", "sure"), [(0.2, False), (0.02, True)])
def test_who_fails_while_the_loss_falls_decides_nothing_however_long_it_was_trained(steps, remark, fall, sure):
    mqar = with_column("mqar", "fall", lambda f: f["fall"].mask(f["beta"] == 1, fall))["mqar"]
    apart = ideal() | {"mqar": mqar.assign(file=mqar["file"].mask(mqar["beta"] == 1, "again.csv"))}
    evidence = world(apart, mqar={"training_steps": "450"})
    evidence.settings["again.csv"] = evidence.settings["mqar.csv"] | {"training_steps": str(steps)}
    for claim in ("figure4/poor-without-attention", "figure4/attention-necessary"):
        decision = decide(CLAIMS[claim], [evidence])
        assert (decision.verdict != UNDECIDED) is (remark in decision.reason) is sure


def test_a_mean_over_beta_is_open_with_one_of_its_comparisons():
    """Left out, the open β of +0.4 would turn the mean of +0.15 into the -0.1 of the other."""

    def one(beta: float, ours: float, fall: float) -> Comparison:
        sides = Estimate(ours, ours - 0.01, ours + 0.01), Estimate(0.5, 0.49, 0.51)
        return Comparison(NEEDLE, "llama2-7b", "h2o", beta, *sides, 8, (0.0, fall), ())

    pairs = [one(0.25, 0.9, 0.2), one(0.5, 0.4, 0.0)]
    mean, each = (judge_comparisons(pairs, by_beta=by_beta) for by_beta in (False, True))
    assert (mean.holds, mean.decided) == (True, False)
    assert (each.holds, each.decided) == (False, True)


def test_states_are_judged_where_lookups_count():
    prices = ideal()["mixer_prices"]
    alone = prices.assign(needle_weight=0.0, cost=1e9)
    found = decided("reviewer/states", mixer_prices=pd.concat([prices.assign(needle_weight=0.5), alone]))
    assert found.finding.ours == decided("reviewer/states").finding.ours
    assert decided("reviewer/states", mixer_prices=alone).verdict == NOT_RUN


def test_what_a_state_costs_has_an_interval_over_groups_and_one_over_seeds():
    prices = ideal()["mixer_prices"]
    finding = decided("reviewer/states").finding
    fraction = bounded_mean([1.0] * 28 + [0.0] * 4)
    shown = f"cheaper in 28 of 32 groups (0.875 [{fraction.low:.3f}, {fraction.high:.3f}]), and costs 0.468 [0."
    assert shown in finding.ours and finding.ours.endswith("(seeds: 2)")
    apart = prices.assign(cost=prices["cost"] * 10.0 ** prices["seed"])
    decision = decided("reviewer/states", mixer_prices=apart)
    assert "costs 1.48 [2.2e-06, 9.93e+05] times" in decision.finding.ours and decision.verdict == UNDECIDED
    few = prices[prices["layer"] < 4]
    assert decided("reviewer/states", mixer_prices=few).verdict == UNDECIDED


def test_a_model_of_which_nothing_longer_was_tried_leaves_longer_inputs_of_all_models_open():
    memory = ideal()["memory"]
    some = memory.assign(at_least=memory["model"] == "qwen2-7b")
    decision = decided("text/longer-inputs", memory=some)
    assert (decision.verdict, "Qwen2-7B" in decision.reason) == (UNDECIDED, True)
    assert decided("text/longer-inputs", memory=memory.assign(at_least=True)).verdict == UNDECIDED
    shorter = memory["beta"] > 0
    fails = memory.assign(l_m=memory["l_m"].mask(shorter, 1000), at_least=~shorter)
    assert decided("text/longer-inputs", memory=fails).verdict in (FAILS_SMALL, CONTRADICTED)
    unknown = memory.assign(at_least=~shorter)
    assert decided("text/longer-inputs", memory=unknown).verdict == UNDECIDED


def by_sample(**scores: list[float]) -> pd.Series:
    """Scores of passkeys, or of what else has samples of this number, under the name of their seed."""
    wide = pd.DataFrame({int(seed[1:]): of_seed for seed, of_seed in scores.items()})
    wide.index = pd.MultiIndex.from_product([["passkey"], [512], [0.5], range(len(wide))], names=NEEDLE.samples)
    return wide.rename_axis("seed", axis=1).stack()


def paired(ours: pd.Series, other: pd.Series, trained: bool = False, same_for_seeds: bool = False) -> Comparison:
    sides = (bounded_mean(of, of.index.get_level_values("seed").to_numpy()) for of in (ours, other))
    shortfalls = less(other, ours, same_for_seeds)
    return Comparison(
        NEEDLE, "llama2-7b", "h2o", 0.5, *sides, len(ours), (0.0, 0.0), (), trained=trained, shortfalls=shortfalls
    )


def test_samples_stand_beside_the_same_samples_of_each_seed():
    """A prompt of one seed is another prompt than that of the same number of another seed; a text is the same."""
    one, two = by_sample(s0=[1.0, 0.5]), by_sample(s0=[0.25, 0.0], s7=[1.0, 0.25])
    assert less(one, two, True).unstack().to_numpy().tolist() == [[0.75, 0.0], [0.5, 0.25]]
    assert less(two, one, True).equals(-less(one, two, True))
    assert less(one, two, False).tolist() == [0.75, 0.5]
    assert less(one, by_sample(s7=[0.0, 0.0]), False).empty
    assert less(two, two, False).eq(0).all() and len(less(two, two, False)) == 4
    more = by_sample(s0=[1.0, 0.5, 0.5])  # of a larger grid: the same number, another prompt
    assert less(one, more, True).empty and less(one, more, False).empty


def test_a_point_between_two_caches_has_the_samples_of_both():
    low, high = by_sample(s0=[0.0, 1.0]), by_sample(s0=[1.0, 0.5])
    rows = [
        {
            "ratio": at,
            "mean": of.mean(),
            "low": 0.0,
            "high": 1.0,
            FALL: 0.0,
            "trained": False,
            "by": "",
            "by_sample": of,
        }
        for at, of in ((0.2, low), (0.6, high), (0.6, high))
    ]
    rows = [row | {"rows": (number,)} for number, row in enumerate(rows)]
    point = at_cache(pd.DataFrame(rows), 0.3)
    assert point["by_sample"].tolist() == pytest.approx([0.25, 0.875])
    assert point["by_sample"].mean() == pytest.approx(point["mean"])
    assert at_cache(pd.DataFrame(rows), 0.6)["by_sample"].equals(high)
    rows[0]["by_sample"] = by_sample(s0=[0.0, 1.0], s1=[0.0, 1.0])
    assert at_cache(pd.DataFrame(rows), 0.3)["by_sample"].empty


@pytest.mark.parametrize(("unequal", "sure"), [(5, False), (9, True)])
def test_a_comparison_on_the_same_samples_needs_enough_that_differ(unequal, sure):
    """Five that differ, all for the worse, may be chance."""
    ours, other = by_sample(s0=[0.0] * unequal + [1.0] * (60 - unequal)), by_sample(s0=[1.0] * 60)
    finding = judge_comparisons([paired(ours, other)])
    assert (finding.holds, finding.decided) == (False, sure)
    assert ("worse by 0.15 [" in finding.ours) is sure
    assert paired(ours, other, trained=True).paired is None  # a single training
    few = paired(ours, ours, same_for_seeds=True).paired
    assert few == pytest.approx((0.0, -few.high, few.high)) and 0 < few.high < 0.1


def test_trainings_that_differ_widen_a_comparison_on_the_same_samples():
    other = by_sample(s0=[0.6, 0.8] * 25, s1=[0.6, 0.8] * 25, s2=[0.6, 0.8] * 25)
    alike = paired(by_sample(s0=[0.7] * 50, s1=[0.7] * 50, s2=[0.7] * 50), other, trained=True).paired
    apart = paired(by_sample(s0=[1.0] * 50, s1=[1.0] * 50, s2=[0.1, 0.3] * 25), other, trained=True).paired
    assert alike.high - alike.low < 0.1 and apart.high - apart.low > 0.9


def test_opposite_trainings_are_not_equal():
    ours, other = by_sample(s0=[1.0] * 60, s1=[0.0] * 60), by_sample(s0=[0.0] * 60, s1=[1.0] * 60)
    assert paired(ours, other, trained=True).paired.high > 0.5


def test_a_random_choice_stands_beside_no_training_of_its_number():
    """It was measured with the prompts of the study's seed. And where both fail, neither is at least as good."""
    passkeys = ideal()["needle"].query("task == 'passkey'")
    ours = passkeys[passkeys["family"].eq("original") | passkeys["by"].isin(["ra_i", "random"])]
    several = pd.concat([ours, ours[ours["by"] == "ra_i"].assign(seed=1)], ignore_index=True)
    found = comparisons(NEEDLE, scores(several, NEEDLE).query("model == 'llama2-7b'"), {"ranking": ["random"]})
    assert len(found) == 1 and found[0].paired is None
    failed = several.assign(correct=several["correct"].where(several["family"] == "original", 0))
    many = pd.concat([failed.assign(sample=failed["sample"] + 8 * part) for part in range(32)])
    points = scores(many, NEEDLE).query("model == 'llama2-7b'")
    assert comparisons(NEEDLE, points, {"ranking": ["random"]}) == []


def test_a_single_training_stands_beside_several_by_its_interval():
    """Of the same text, it could be set beside each of them; but it may be better or worse by chance."""
    rows = ideal()["continuation"].query("model == 'llama2-7b'")
    rows = rows[rows["family"].eq("original") | (rows["trained"] & rows["method"].isin(["mamba", "linear"]))]
    ours = rows["method"].eq("mamba") & rows["by"].eq("ra_i")
    several = pd.concat([rows, rows[ours].assign(seed=1), rows[ours].assign(seed=2)], ignore_index=True)
    alone, both = (
        comparisons(CONTINUATION, scores(frame, CONTINUATION), {"ranking": ["mixer_price"]})
        for frame in (several, pd.concat([several, rows[rows["by"].eq("mixer_price")].assign(seed=1)]))
    )
    assert len(alone) == len(both) == 1 and alone[0].paired is None and both[0].paired is not None


def test_prompts_that_several_choices_of_heads_share_are_no_new_prompts():
    right = {f"s{seed}": [0.0, 1.0, 1.0, 1.0, 1.0] * 10 for seed in range(8)}
    ours, random = by_sample(s0=[1.0, 1.0, 1.0, 0.0, 0.0] * 10), by_sample(**right)
    one, eight = (paired(ours, other, same_for_seeds=True).paired for other in (by_sample(s0=right["s0"]), random))
    assert eight == pytest.approx(one)


def test_windows_with_more_recalled_tokens_count_more():
    """Better on the many tokens of some windows, worse on the few of others, as the scores beside it say."""
    windows = pd.MultiIndex.from_product([range(24), [0]], names=["window", "seed"])
    shortfalls = pd.Series([0.9, -0.1] * 12, windows)
    sides = Estimate(-1.92, -2.0, -1.8), Estimate(-2.0, -2.1, -1.9)
    one = Comparison(RECALL, "llama2-7b", "h2o", 0.5, *sides, 24, (0.2, 0.0), (), trained=False, shortfalls=shortfalls)
    assert one.shortfall.mean == pytest.approx(-0.08) and not one.why_undecided("equal")


@pytest.mark.parametrize(("samples", "sure"), [(2, False), (200, True)])
def test_a_wide_interval_reaches_a_printed_number_for_want_of_samples(samples, sure):
    few = with_column("hashhop", "correct", lambda f: f["hops"].where(f["sample"] % 2 == 0, 0))["hashhop"]
    cell = replace(next(cell for cell in CELLS if cell.id == "table4/llama2-7b/0.90/h_gq"), printed="0.500")
    finding = quality(world(ideal() | {"hashhop": few[few["sample"] < samples]}), cell)
    assert (finding.holds, finding.decided) == (True, sure)


@pytest.mark.parametrize(
    ("change", "verdict", "why"),
    [
        (
            {"trained": lambda f: f["trained"] & (f["method"] != "linear")},
            NOT_RUN,
            "linear attention on the same heads",
        ),
        ({"fall": lambda f: f["fall"].mask(f["method"] == "linear", 0.2)}, UNDECIDED, "linear attention at β 0.5: the"),
    ],
)
def test_a_mixer_that_was_not_trained_to_its_end_is_no_rival(change, verdict, why):
    rivals = {kind: ideal()[kind].assign(**change) for kind in ("compared_hashhop", "needle", "continuation")}
    decision = decided("reviewer/mixers", **rivals)
    assert (decision.verdict, why in decision.reason) == (verdict, True)


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
    other = world(ideal(), **{kind: {setting: value}})
    decision = decide(CLAIMS[claim], [other])
    assert decided(claim).at_scale and not decision.at_scale
    if not claim.startswith(("text/", "figure")) or claim == "text/equation-3":
        assert decision.verdict == NOT_RUN, "a printed number is not decided at another size"
    assert decide(CLAIMS[claim], [other, world(ideal(), "recorded/gpu")]).evidence.source == "recorded/gpu"


GQA = ("qwen2-0.5b", "qwen2-7b")


@pytest.mark.parametrize(
    ("claim", "models", "verdict", "why"),
    [
        ("text/quality-kept", GQA, CONSISTENT, ""),
        ("text/collapse-at-one", GQA, CONSISTENT, ""),
        ("text/no-eviction", GQA, CONSISTENT, ""),
        ("text/first-contributes-less", GQA[1:], NOT_RUN, "the sentence is about Qwen2-0.5B and Llama2-7B"),
        ("text/first-contributes-less-qwen2-7b", GQA[1:], REPRODUCED, ""),
        ("text/collapse-in-mha-and-gqa", GQA, NOT_RUN, "models with GQA only"),
        ("text/collapse-in-mha-and-gqa", ("llama2-7b",), NOT_RUN, "models with MHA only"),
    ],
)
def test_some_of_the_papers_models_are_not_all_that_a_sentence_is_about(claim, models, verdict, why):
    only = {kind: f[f["model"].isin(models)] if "model" in f else f for kind, f in ideal().items()}
    decision = decide(CLAIMS[claim], [world(only)])
    assert (decision.verdict, why in decision.reason) == (verdict, True)


@pytest.mark.parametrize(("kv_heads", "verdict"), [("2", CONSISTENT), ("8", NOT_RUN), (None, NOT_RUN)])
def test_the_kind_of_attention_of_a_small_model_stands_in_the_record_of_its_backbone(kv_heads, verdict, tmp_path):
    mha, gqa = SMALL["llama2-7b"], SMALL["qwen2-7b"]
    chosen = {
        kind: frame[frame["model"].isin([mha, gqa])] for kind, frame in smaller(ideal()).items()
        if kind in ("hashhop", "baseline")
    }  # fmt: skip
    for model in (mha, gqa):
        heads = {"heads": "8", "kv_heads": "8" if model == mha else kv_heads}
        made = {"stage": "backbone", "settings": heads, "outputs": ["baseline.csv"]}
        (tmp_path / model).mkdir()
        (tmp_path / model / "run.json").write_text(json.dumps({"run": model, "argv": [], "inputs": [], **made}))
    placed = chosen["baseline"].assign(file=lambda f: str(tmp_path) + "/" + f["model"] + "/baseline.csv")
    assert decide(CLAIMS["text/collapse-in-mha-and-gqa"], [world(chosen | {"baseline": placed})]).verdict == verdict


EVICTED = {"eviction-h2o-", "eviction-snapkv-", "eviction-pyramidinfer_paper-"}
RA_I = {"original-full-", "mixer-mamba-ra_i"}
REPLACED = {"mixer-window-ra_i", "mixer-linear-ra_i", "layers-mamba-ra_i", "single-mamba-ra_i"}
OF_ABLATIONS = ("compared_hashhop", "needle", "continuation")


@pytest.mark.parametrize(
    ("claim", "kinds", "subjects", "seeds"),
    [
        ("pareto", OF_ABLATIONS[:1], RA_I | EVICTED | REPLACED, 1),
        ("needle", OF_ABLATIONS[1:2], RA_I | EVICTED, 1),
        ("recalled", OF_ABLATIONS[2:], RA_I | EVICTED, 1),
        ("granularity", OF_ABLATIONS, RA_I | {"layers-mamba-ra_i"}, 1),
        ("selectors", OF_ABLATIONS, RA_I | {"mixer-mamba-random"}, 3),
        ("length", ("continuation",), RA_I, 1),
        ("sizes", ("hashhop_sizes",), RA_I, 1),
    ],
)
def test_the_evidence_of_a_reviewers_claim_is_what_its_judge_compared(claim, kinds, subjects, seeds):
    named = {
        kind: frame.assign(file=frame["family"] + "-" + frame["method"] + "-" + frame["by"] + f"/{kind}.csv")
        for kind, frame in ideal().items() if "family" in frame
    }  # fmt: skip
    decision = decided(f"reviewer/{claim}", **named)
    assert set(decision.files) == {f"{subject}/{kind}.csv" for subject, kind in product(subjects, kinds)}
    assert decision.seeds == seeds


def test_a_score_between_two_budgets_rests_on_these_two():
    frame = ideal()["needle"]
    h2o = frame[(frame["method"] == "h2o") & (frame["setting"] == 0.2)]
    further = (h2o.assign(setting=fraction, ratio=fraction) for fraction in (0.1, 0.3, 0.9))
    budgets = pd.concat([frame, *further], ignore_index=True)
    placed = budgets.assign(file=budgets["method"] + budgets["setting"].astype(str) + "/needle.csv")
    used = decided("reviewer/needle", needle=placed).files
    assert {file for file in used if "h2o" in file} == {"h2o0.3/needle.csv", "h2o0.8/needle.csv"}


@pytest.mark.parametrize(
    ("claim", "kind", "column"),
    [("text/perplexity-comparable", "perplexity", "negative_log_likelihood"), ("figure3/converge", "metrics", "loss")],
)
def test_a_fraction_of_heads_that_the_paper_does_not_print_decides_nothing_of_its_training(claim, kind, column):
    frame = ideal()[kind]
    half = frame[frame["beta"] == 0.5]
    trained = half["stage"] == "trained" if "stage" in half else half["beta"] == 0.5
    every = half.assign(beta=1.0, **{column: half[column].mask(trained, 3 * half[column])})
    assert decided(claim, **{kind: pd.concat([frame, every], ignore_index=True)}).verdict == decided(claim).verdict
    worse = frame.assign(**{column: frame[column].mask(frame["beta"] == 0.5, 3 * frame[column])})
    assert decided(claim, **{kind: worse}).verdict != decided(claim).verdict


def test_heads_are_no_samples():
    decision = decided("reviewer/head_maps")
    assert decision.finding.samples is None and not decision.seeds
    assert "64 heads" in decision.finding.ours


def test_no_measurement_helps_a_statement_that_the_paper_itself_contradicts():
    for claim in (*IMPOSSIBLE, "text/non-overlapping", "appendix/alpha", "table1/prefill/attention/cache_size"):
        decision = decided(claim)
        assert decision.verdict == PAPER_INCONSISTENT and decision.reason


def test_the_ledger_counts_every_verdict_and_shows_every_claim():
    ledger = make_ledger("default", [world(ideal())])
    assert set(ledger.counts()) == set(MARKS)
    assert sum(ledger.counts().values()) == len(CELLS) + len(NUMBERS) + len(STATEMENTS)
    assert sum(ledger.counts(reviewers=True).values()) == sum(bool(one.claim) for one in QUESTIONS.values())
    assert list(ledger.frame()["id"]) == list(CLAIMS)
    shown = ledger.to_dict()
    claim = next(claim for claim in shown["claims"] if claim["id"] == "table4/llama2-7b/0.90/cs_10k")
    assert (claim["evidence"]["files"], claim["evidence"]["scale"]) == (["cache.csv"], "paper")
    text = claims_markdown(shown)
    assert all(claim.place in text for claim in CLAIMS.values())
    assert "0.5930 − 0.3815 = 0.2115" in text
    by_definition = sum(cell.printed == "1.0000" for cell in CELLS)
    assert ledger.by_definition() == by_definition == 12
    assert f"{by_definition} of the reproduced are so by definition" in text
    assert not from_recordings(ledger.decisions)
    borrowed = make_ledger("smoke", [world(ideal(), "recorded/gpu")])
    behind = sum(bool(decision.recording) for decision in borrowed.decisions)
    assert {d.verdict for d in borrowed.decisions if d.evidence and not d.recording} == {PAPER_INCONSISTENT}
    assert borrowed.counts(borrowed=True) | {NOT_RUN: 0, PAPER_INCONSISTENT: 0} == {
        **borrowed.counts(), NOT_RUN: 0, PAPER_INCONSISTENT: 0}  # fmt: skip
    assert not any(ledger.counts(borrowed=True).values())
    (said,) = from_recordings(borrowed.decisions)
    assert str(behind) in said and said in claims_markdown(borrowed.to_dict(), [said])


def test_a_verdict_that_only_a_recording_leaves_open_is_about_that_recording():
    def judge(evidence):
        raise (Missing if evidence.source == THIS_STUDY else Undecided)("no")

    sources = [world(ideal()), world(ideal(), "recorded/gpu")]
    found = [decide(replace(TREND, judge=judge), some) for some in (sources, sources[:1])]
    assert [(one.verdict, one.recording) for one in found] == [(UNDECIDED, "recorded/gpu"), (NOT_RUN, "")]
    assert from_recordings(found) == ["Verdicts from earlier measurements, in recorded/gpu: 1."]


def test_what_the_reviewers_asked_is_no_verdict_on_the_paper():
    frames = smaller(MUTATIONS["settings of RA-I matter"])
    ledger = make_ledger("default", [world(frames)], [CLAIMS["reviewer/ra_i"], TREND])
    assert [decision.verdict for decision in ledger.decisions] == [FAILS_SMALL, CONSISTENT]
    assert ledger.counts() | {CONSISTENT: 0} == dict.fromkeys(MARKS, 0)
    assert ledger.counts(reviewers=True) == dict.fromkeys(MARKS, 0) | {FAILS_SMALL: 1}
    assert ledger.to_dict()["counts"] == ledger.counts()
