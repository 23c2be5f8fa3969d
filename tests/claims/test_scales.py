"""Which models and sizes a claim is about, and what its judge compared."""

import json
from itertools import product

import pandas as pd
import pytest
from claims_world import world
from mutated_worlds import CLAIMS, OF_ABLATIONS, decided, found, ideal, smaller, with_column

from recurformer.claims import decide, make_ledger
from recurformer.claims.ledger import from_recordings
from recurformer.paper import CELLS
from recurformer.render.page import claims_markdown
from recurformer.results.words import (
    CONSISTENT,
    NOT_RUN,
    REPRODUCED,
    UNDECIDED,
)


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
    assert right.at_scale and not other.at_scale
    if not claim.startswith(("text/", "figure")) or claim == "text/equation-3":
        assert other.verdict == NOT_RUN, "a printed number is not decided at another size"
    recorded = world(ideal(), "recorded/gpu")
    both = decide(CLAIMS[claim], [world(ideal(), **{kind: {setting: value}}), recorded])
    assert both.evidence.source == "recorded/gpu"


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
        ("pareto", OF_ABLATIONS[:1], RA_I | EVICTED | REPLACED, 1),
        ("needle", ("needle",), RA_I | EVICTED, 1),
        ("granularity", OF_ABLATIONS, RA_I | {"layers-mamba-ra_i"}, 1),
        ("selectors", OF_ABLATIONS, RA_I | {"mixer-mamba-random"}, 3),
        ("length", ("continuation",), RA_I, 1),
        ("sizes", ("hashhop_sizes",), RA_I, 1),
    ],
)
def test_the_evidence_of_a_reviewers_claim_is_what_its_judge_compared(claim, kinds, things, seeds):
    named = {
        kind: frame.assign(file=frame["family"] + "-" + frame["method"] + "-" + frame["by"] + f"/{kind}.csv")
        if "family" in frame else frame
        for kind, frame in ideal().items()
    }  # fmt: skip
    decision = decide(CLAIMS[f"reviewer/{claim}"], [world(named)])
    assert set(decision.files) == {f"{thing}/{kind}.csv" for thing, kind in product(things, kinds)}
    assert decision.seeds == seeds


def test_a_score_between_two_budgets_rests_on_these_two():
    frame = ideal()["needle"]
    budgets = pd.concat([frame, *(
        frame[(frame["method"] == "h2o") & (frame["setting"] == 0.2)].assign(setting=fraction, ratio=fraction)
        for fraction in (0.1, 0.3, 0.9)
    )])  # fmt: skip
    placed = budgets.assign(file=budgets["method"] + budgets["setting"].astype(str) + "/needle.csv").reset_index(
        drop=True
    )
    used = decided("reviewer/needle", needle=placed).files
    assert {file for file in used if "h2o" in file} == {"h2o0.3/needle.csv", "h2o0.8/needle.csv"}


def test_heads_are_no_samples():
    scored = ideal()["head_scores"]
    scored = pd.concat([scored, scored[scored["by"] == "ra_i"].assign(by="random", seed=1)], ignore_index=True)
    decision = decided("reviewer/head_maps", head_scores=scored)
    assert decision.finding.samples is None
    assert "64 heads" in decision.finding.ours
    assert not decision.seeds


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
    assert f"{len(one)} of the reproduced are so by definition" in claims_markdown(ledger.to_dict())
    assert not from_recordings(ledger.decisions)
    borrowed = make_ledger("smoke", [world(ideal(), "recorded/gpu")])
    behind = sum(decision.evidence is not None for decision in borrowed.decisions)
    said = [f"Verdicts from recorded/gpu, not from this study: {behind}."]
    assert from_recordings(borrowed.decisions) == said
    assert said[0] in claims_markdown(borrowed.to_dict(), said)
