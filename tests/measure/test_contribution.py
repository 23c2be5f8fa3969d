"""Figure 2, Table 5 and Figure 5 against the full eager attention matrices."""

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM

from recurformer import HeadProfile, convert, profile_heads
from recurformer.measure.attention_map import attention_maps, representative_heads
from recurformer.measure.contribution import (
    Contributions,
    contribution_table,
    sink_statistics,
    token_contributions,
)

LAYERS, HEADS, SAMPLES, TOKENS = 2, 4, 5, 150  # more tokens than one block of query rows


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=64,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def input_ids():
    return torch.randint(0, 64, (SAMPLES, TOKENS), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def attentions_and_values(model, input_ids) -> tuple[torch.Tensor, torch.Tensor]:
    """Eager weights (B, layers, H, L, L) and values (B, layers, H, L, head_dim), float64, from stock hooks."""
    values: dict[int, torch.Tensor] = {}
    handles = [
        layer.self_attn.v_proj.register_forward_hook(lambda m, a, output, i=i: values.__setitem__(i, output))
        for i, layer in enumerate(model.model.layers)
    ]
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    weights = model(input_ids, output_attentions=True, use_cache=False).attentions
    model.set_attn_implementation(implementation)
    for handle in handles:
        handle.remove()
    shaped = [values[i].view(*input_ids.shape, 2, 8).transpose(1, 2).repeat_interleave(2, 1) for i in range(LAYERS)]
    return torch.stack(weights, 1).double(), torch.stack(shaped, 1).double()


@pytest.mark.parametrize("batch_size", [1, 2])
def test_contributions_equal_their_definition(model, input_ids, batch_size):
    found = token_contributions(model, input_ids, batch_size=batch_size)
    weights, values = attentions_and_values(model, input_ids)
    for norm, order in (("l1", 1), ("l2", 2)):
        norms = values.norm(p=order, dim=-1)
        per_token = torch.stack(
            [(weights[..., i:, i] * norms[..., i, None]).mean(-1) for i in range(TOKENS)], -1
        )  # mean over the queries t >= i
        torch.testing.assert_close(found.first[norm], per_token[..., 0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.other[norm], per_token[..., 1:].mean(-1), atol=1e-5, rtol=1e-5)
        assert found.first[norm].std() > 0.01


def test_heads_that_do_not_attend_are_left_out(model, input_ids):
    converted = convert(model, [[], [0, 1, 3]], d_state=4, dt_rank=2).eval()
    found = token_contributions(converted, input_ids[:2])
    gone = found.first["l1"].isnan()
    assert gone[:, 1, [0, 1, 3]].all() and gone.sum() == 2 * 3
    assert not contribution_table(found, "tiny")["mean"].isna().any()


def synthetic(first_mean: float, other_mean: float, samples: int = 40) -> Contributions:
    generator = torch.Generator().manual_seed(5)
    shape = (samples, 3, 4)

    def draw(mean: float) -> torch.Tensor:
        return mean + torch.randn(shape, generator=generator, dtype=torch.float64)

    return Contributions({n: draw(first_mean) for n in ("l1", "l2")}, {n: draw(other_mean) for n in ("l1", "l2")})


def test_table_rows_by_hand():
    contributions = synthetic(1.0, 2.0)
    table = contribution_table(contributions, "tiny")
    assert list(table.columns) == [
        "model", "norm", "tokens", "interval", "mean", "low", "high", "samples", "p_value",
    ]  # fmt: skip
    assert len(table) == 2 * 2 * 2 and (table.samples == 40).all()
    first = contributions.first["l1"].numpy()
    row = table[(table.norm == "l1") & (table.tokens == "first")].set_index("interval")
    assert row["mean"].to_numpy() == pytest.approx(first.mean())
    windows = first.mean((1, 2))
    low, high = stats.t.interval(0.95, 39, windows.mean(), stats.sem(windows))
    assert row.loc["mean", ["low", "high"]].tolist() == pytest.approx([low, high])
    half = 1.959964 * first.std(ddof=1)
    assert row.loc["spread", ["low", "high"]].tolist() == pytest.approx(
        [first.mean() - half, first.mean() + half], 1e-6
    )
    # the paper's intervals: below zero for the spread only
    assert row.loc["spread", "low"] < 0 < row.loc["mean", "low"]
    expected = stats.ttest_rel(windows, contributions.other["l1"].numpy().mean((1, 2))).pvalue
    assert row.p_value.tolist() == pytest.approx([expected] * 2)


def test_paired_test_has_power_and_no_false_alarm():
    assert (contribution_table(synthetic(1.0, 1.6), "tiny").p_value < 1e-3).all()
    assert (contribution_table(synthetic(1.0, 1.0), "tiny").p_value > 1e-3).all()


def test_confidence_interval_covers_the_mean():
    """About 95 % of the intervals over fresh windows contain the true mean, spreads all of them."""
    hits = []
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        values = {n: torch.randn(10, 1, 1, generator=generator, dtype=torch.float64) + 3 for n in ("l1", "l2")}
        table = contribution_table(Contributions(values, values), "tiny")
        row = table[(table.norm == "l1") & (table.tokens == "first") & (table.interval == "mean")].iloc[0]
        hits.append(row.low <= 3 <= row.high)
    assert 0.9 <= np.mean(hits) <= 0.99


def test_intervals_need_two_windows(model, input_ids):
    with pytest.raises(ValueError, match="at least 2 of them, got 1"):
        contribution_table(token_contributions(model, input_ids[:1]), "tiny")
    with pytest.raises(ValueError, match=r"1 token\(s\) in a sample, at least 2 are needed"):
        token_contributions(model, input_ids[:, :1])


def test_sink_head_and_its_matrices(model, input_ids):
    short = input_ids[:, :12]
    frame = sink_statistics(model, short, "tiny", batch_size=2)
    weights, values = attentions_and_values(model, short)
    on_first = weights[..., 1:, 0].mean((0, -1))  # (layers, H)
    layer, head = divmod(int(on_first.argmax()), HEADS)
    assert on_first.max() > on_first.flatten().sort().values[-2] + 1e-3  # the rule decides
    assert set(frame.layer) == {layer} and set(frame["head"]) == {head}
    assert (frame.samples == SAMPLES).all() and set(frame.model) == {"tiny"}
    norms = values[:, layer, head].norm(dim=-1)  # (B, L)
    expected = {
        "attention": weights[:, layer, head].mean(0),
        "contribution": (weights[:, layer, head] * norms[:, None]).mean(0),
    }
    for quantity, matrix in expected.items():
        rows = frame[frame.quantity == quantity]
        assert len(rows) == 12 * 13 // 2
        assert rows.value.to_numpy() == pytest.approx(matrix.numpy()[rows["query"], rows["key"]], abs=1e-5)
    rows = frame[frame.quantity == "value_norm"]
    assert (rows["query"] == -1).all() and rows.key.tolist() == list(range(12))
    assert rows.value.to_numpy() == pytest.approx(norms.mean(0).numpy(), abs=1e-5)
    chosen = sink_statistics(model, short, "tiny", layer=1, head=2)
    assert set(chosen.layer) == {1} and set(chosen["head"]) == {2}
    with pytest.raises(ValueError, match="layer=1 and head=None: give both or neither"):
        sink_statistics(model, short, "tiny", layer=1)


def test_attention_maps_are_the_averages(model, input_ids):
    profile = profile_heads(model, input_ids, window=20, threshold=0.22)
    frame = attention_maps(model, input_ids, profile, "tiny", batch_size=2)
    weights, _ = attentions_and_values(model, input_ids)
    chosen = representative_heads(profile)
    assert len(set(chosen.values())) == 3
    for level, (layer, head) in chosen.items():
        rows = frame[frame.level == level]
        assert len(rows) == TOKENS * (TOKENS + 1) // 2
        assert set(rows.layer) == {layer} and set(rows["head"]) == {head}
        assert set(rows.ra_i) == {int(profile.ra_i[layer, head])} and set(rows.samples) == {SAMPLES}
        expected = weights[:, layer, head].mean(0).numpy()[rows["query"], rows["key"]]
        assert rows.weight.to_numpy() == pytest.approx(expected, abs=1e-6)
        assert rows.groupby("query").weight.sum().to_numpy() == pytest.approx(1, abs=1e-6)
    with pytest.raises(ValueError, match=r"profile is of \(3, 4\) layers and heads, model tiny has \(2, 4\)"):
        attention_maps(model, input_ids, HeadProfile(torch.rand(1, 3, 4), 5, 0.5, True, 2, 32), "tiny")


def test_representative_heads_by_hand():
    rr = torch.tensor([[[0.9, 0.8, 0.1], [0.7, 0.2, float("nan")]]], dtype=torch.float64)
    profile = HeadProfile(rr, 5, 0.5, True, 3, 32)
    assert representative_heads(profile) == {"high": (0, 0), "mid": (1, 0), "low": (0, 2)}
    with pytest.raises(ValueError, match="2 heads have a recency ratio"):
        representative_heads(HeadProfile(rr[:, :1, :2], 5, 0.5, True, 2, 32))
