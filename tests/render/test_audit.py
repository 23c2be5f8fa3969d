"""The audit: what it finds in the paper, and that each of its rules can find something and nothing."""

from dataclasses import replace

import pandas as pd
import pytest

from recurformer.claims.audit import audit, tables, text
from recurformer.claims.claim import STATEMENTS
from recurformer.paper import CELLS
from recurformer.paper.sizes import CACHE_LENGTHS

FOUND = {step.id: step for step in audit()}


def counted_caches(**differing: float) -> pd.DataFrame:
    """Caches as the paper printed them, the cells of some models off by a difference."""
    rows = [
        (cell.model, unit, cell.beta, CACHE_LENGTHS[cell.quantity], cell.value + differing.get(cell.model, 0.0) + extra)
        for cell in CELLS
        if cell.table == 4 and cell.quantity in CACHE_LENGTHS
        for unit, extra in (("kv_group", 0.0), ("head", 0.3))
    ]
    return pd.DataFrame(rows, columns=["model", "unit", "beta", "length", "ratio"])


@pytest.mark.parametrize(
    ("name", "arithmetic"),
    [
        ("audit/monotone/qwen2-7b/cs_10k", "β 0.50 → 0.75: 0.3815 → 0.5930, larger by 0.2115"),
        ("audit/alpha", "102 / 1024 tokens = 0.100"),
        ("audit/overlap/llama2-7b/l1", "both hold [0.0254, 0.0486]"),
        ("audit/width/llama2-7b/first/l2_interval", "(0.0067 − -0.0041) / 2 / 0.0013 = 4.15 > 1.97"),
        ("audit/eviction-ratio", "= 0.0472 ≠ 0.1054"),
        ("audit/centred/qwen2-7b/first/l1_interval", "(-0.5195 + 0.6602) / 2 = 0.07035 ≠ 0.0708"),
        ("audit/models-named", "in the text only: Llama2-13B; in the table only: Qwen2-7B"),
        ("audit/masked-prediction", "causal"),
        ("audit/figure5-samples", "512"),
        ("audit/prefill-symbol", "O(l_g · d)"),
        ("audit/cache-readings/qwen2-0.5b", "largest 0.0625"),
        ("audit/cache-readings/qwen2-7b", "nearest: unit kv_group, rounded down in each model"),
        ("audit/recurrent-state/qwen2-0.5b", "β 0.90: (0.0632 − 0.0626) · 12,288 = 7.4 tokens"),
    ],
)
def test_the_papers_inconsistencies_are_found_with_their_arithmetic(name, arithmetic):
    assert not FOUND[name].consistent
    assert any(arithmetic in step for step in FOUND[name].arithmetic)


@pytest.mark.parametrize(
    "name",
    ["audit/table2-in-table4/llama2-7b", "audit/text/llama2-7b/recurformer/cs_10k-reduction",
     "audit/text/qwen2-0.5b/recurformer/cs_60k-reduction", "audit/monotone/llama2-7b/cs_10k",
     "audit/recurrent-state/llama2-7b", "audit/cache-readings/llama2-7b", "audit/width/llama2-7b/other/l2_interval"],
)  # fmt: skip
def test_what_agrees_is_shown_too(name):
    assert FOUND[name].consistent
    assert FOUND[name].arithmetic
    assert not FOUND[name].claims


def test_findings_name_printed_things_only():
    printed = {cell.id for cell in CELLS} | set(STATEMENTS)
    assert {claim for step in FOUND.values() for claim in step.claims} <= printed
    broken = [step for step in FOUND.values() if not step.consistent]
    assert all(step.claims for step in broken if step.id.startswith(("audit/monotone", "audit/overlap")))


@pytest.mark.parametrize(
    ("rule", "name", "changed", "printed"),
    [
        (tables.monotone, "audit/monotone/qwen2-7b/cs_10k", ("qwen2-7b", "cs_10k", 0.75), "0.2530"),
        (tables.monotone, "audit/monotone/llama2-7b/cs_60k", ("llama2-7b", "cs_60k", 0.75), "0.6000"),
        (tables.monotone, "audit/monotone/llama2-7b/l_m", ("llama2-7b", "l_m", 1.0), "80,000"),
        (tables.recurrent_state, "audit/recurrent-state/llama2-7b", ("llama2-7b", "cs_10k", 0.9), "0.1000"),
        (tables.table2_in_table4, "audit/table2-in-table4/qwen2-7b", ("qwen2-7b", "h_gq", 0.9), "0.931"),
    ],
)  # fmt: skip
def test_other_digits_would_have_been_judged_otherwise(monkeypatch, rule, name, changed, printed):
    before = {step.id: step.consistent for step in rule()}[name]
    cell = tables.TABLE4[changed]
    monkeypatch.setitem(tables.TABLE4, changed, replace(cell, printed=printed))
    assert {step.id: step.consistent for step in rule()}[name] is not before


@pytest.mark.parametrize(
    ("name", "statement", "quote"),
    [
        ("models_named", "text/models-of-the-cache-runs", "We evaluated Qwen2-0.5B, Llama2-7B, and Qwen2-7B"),
        ("threshold", "appendix/alpha", "the first 1024 tokens, setting α to 0.5"),
        ("masked_prediction", "text/masked-prediction", "trained on next tokens"),
        ("figure5_samples", "figure5/samples", "over 1024 English samples"),
    ],
)
def test_another_sentence_would_have_agreed(monkeypatch, name, statement, quote):
    assert not getattr(text, name)().consistent
    monkeypatch.setitem(STATEMENTS, statement, replace(STATEMENTS[statement], quote=quote))
    assert getattr(text, name)().consistent


def test_a_wrong_percentage_in_the_text_would_be_found(monkeypatch):
    (first, *others) = tables.NUMBERS
    monkeypatch.setattr(tables, "NUMBERS", (replace(first, printed="98.7"), *others))
    broken = [step for step in tables.text_numbers() if not step.consistent]
    assert [step.claims for step in broken] == [(first.id,)]


def test_cache_columns_are_compared_under_every_reading_and_the_residue_is_named():
    found = {step.id: step for step in audit(counted_caches(**{"qwen2-7b": 0.05}))}
    assert found["audit/cache-columns/llama2-7b"].consistent
    other = found["audit/cache-columns/qwen2-7b"]
    assert not other.consistent
    assert other.arithmetic[0] == "reading kv_group: mean residue 0.0500, largest 0.0500"
    assert other.arithmetic[1] == "reading head: mean residue 0.3500, largest 0.3500"
    assert other.arithmetic[2].startswith("nearest: kv_group")
    assert "cs_10k, β 0.75: 0.6430 − 0.5930 = +0.0500" in other.arithmetic


def test_caches_that_were_not_counted_are_not_judged():
    found = audit(counted_caches().query("model != 'qwen2-7b' and beta > 0.3"))
    assert not [step for step in found if step.id.startswith("audit/cache-columns")]
