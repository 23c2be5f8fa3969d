"""Figure 2, Table 5 and Figure 5 against the full eager attention matrices."""

import pytest
import torch
from scipy import stats
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from recurformer import HeadProfile, convert, profile_heads
from recurformer.data.backbones import make_random
from recurformer.heads import attention
from recurformer.measure.maps import (
    Contributions,
    attention_maps,
    contribution_table,
    representative_heads,
    sink_statistics,
    token_contributions,
)

LAYERS, HEADS, SAMPLES, TOKENS = 2, 4, 5, 150  # more tokens than one block of query rows


@pytest.fixture(scope="module")
def model():
    """In float64: the streamed sums can be compared to the last digits."""
    sizes = {"hidden_size": 32, "layers": LAYERS, "heads": HEADS, "kv_heads": 2, "intermediate_size": 48}
    return make_random(**sizes, vocab_size=64, initializer_range=0.4).double()


@pytest.fixture(scope="module")
def input_ids():
    return torch.randint(0, 64, (SAMPLES, TOKENS), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def weights_and_norms(model, input_ids) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The whole attention matrices (B, layers, H, L, L) and value norms (B, layers, H, L), from the projections alone;
    and the values (B, layers, H, L, D).

    Nothing of transformers' attention is used but its rotation of queries and keys.
    """
    states: dict[tuple[int, str], torch.Tensor] = {}
    handles = [
        getattr(layer.self_attn, name).register_forward_hook(
            lambda m, a, output, place=(i, name): states.__setitem__(place, output)
        )
        for i, layer in enumerate(model.model.layers)
        for name in ("q_proj", "k_proj", "v_proj")
    ]
    model(input_ids, use_cache=False)
    for handle in handles:
        handle.remove()
    length, dim = input_ids.shape[1], model.config.head_dim
    states = {place: state.unflatten(-1, (-1, dim)).transpose(1, 2) for place, state in states.items()}
    rotation = model.model.rotary_emb(states[0, "q_proj"], torch.arange(length)[None])
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights, values = [], []
    for i in range(LAYERS):
        query, key = apply_rotary_pos_emb(states[i, "q_proj"], states[i, "k_proj"], *rotation)
        groups = query.shape[1] // key.shape[1]
        scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) / dim**0.5
        weights.append(scores.masked_fill(future, float("-inf")).softmax(-1))
        values.append(states[i, "v_proj"].repeat_interleave(groups, 1))
    shaped = torch.stack(values, 1)
    norms = {"l1": shaped.abs().sum(-1), "l2": shaped.square().sum(-1).sqrt(), "values": shaped}
    return torch.stack(weights, 1), norms


def paired_within_queries(weights: torch.Tensor, norms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Table 5's definition, query by query: (B, layers, H, L, L) and (B, layers, H, L) -> twice (B, layers, H)."""
    first, other = [], []
    for t in range(1, weights.shape[-1]):
        contributions = weights[..., t, : t + 1] * norms[..., : t + 1]
        first.append(contributions[..., 0])
        other.append(contributions[..., 1:].mean(-1))
    return torch.stack(first).mean(0), torch.stack(other).mean(0)


@pytest.mark.parametrize(("batch_size", "rows"), [(1, 1), (2, 7), (2, 36), (1, 37), (2, 128)])
def test_contributions_equal_their_definition(model, input_ids, batch_size, rows, monkeypatch):
    monkeypatch.setattr(attention, "ROWS", rows)
    monkeypatch.setattr(attention, "samples_per_batch", lambda device, tokens: batch_size)
    short = input_ids[:3, :37]
    found = token_contributions(model, short)
    weights, norms = weights_and_norms(model, short)
    for norm in ("l1", "l2"):
        first, other = paired_within_queries(weights, norms[norm])
        assert first.std() > 0.01  # the comparison has power
        torch.testing.assert_close(found.first[norm], first, atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(found.other[norm], other, atol=1e-12, rtol=1e-12)


def test_heads_that_do_not_attend_are_left_out(model, input_ids):
    converted = convert(model, [[], [0, 1, 3]], d_state=4, dt_rank=2).eval()
    found = token_contributions(converted, input_ids[:2])
    gone = found.first["l1"].isnan()
    assert gone[:, 1, [0, 1, 3]].all() and gone.sum() == 2 * 3
    assert not contribution_table(found, "tiny")["mean"].isna().any()


def test_table_rows_by_hand():
    generator = torch.Generator().manual_seed(5)
    values = {mean: mean + torch.randn(40, 3, 4, generator=generator, dtype=torch.float64) for mean in (1.0, 2.0)}
    contributions = Contributions(*({norm: drawn for norm in ("l1", "l2")} for drawn in values.values()))
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


def test_intervals_need_two_windows(model, input_ids):
    with pytest.raises(ValueError, match="at least 2 of them, got 1"):
        contribution_table(token_contributions(model, input_ids[:1]), "tiny")
    with pytest.raises(ValueError, match=r"1 token\(s\) in a sample, at least 2 are needed"):
        token_contributions(model, input_ids[:, :1])


def test_sink_head_and_its_matrices(model, input_ids, monkeypatch):
    monkeypatch.setattr(attention, "samples_per_batch", lambda device, tokens: 2)
    short = input_ids[:, :12]
    frame = sink_statistics(model, short, "tiny")
    weights, lengths = weights_and_norms(model, short)
    on_first = weights[..., 1:, 0].mean((0, -1))  # (layers, H)
    layer, head = divmod(int(on_first.argmax()), HEADS)
    assert on_first.max() > on_first.flatten().sort().values[-2] + 1e-3  # the rule decides
    assert set(frame.layer) == {layer} and set(frame["head"]) == {head}
    assert (frame.samples == SAMPLES).all() and set(frame.model) == {"tiny"}
    norms, absolute = (lengths[norm][:, layer, head] for norm in ("l2", "l1"))  # (B, L)
    expected = {
        "attention": weights[:, layer, head].mean(0),
        "contribution": (weights[:, layer, head] * norms[:, None]).mean(0),
    }
    for quantity, matrix in expected.items():
        rows = frame[frame.quantity == quantity]
        assert len(rows) == 12 * 13 // 2
        assert rows.value.to_numpy() == pytest.approx(matrix.numpy()[rows["query"], rows["key"]], abs=1e-5)
    for quantity, expected_norms in (("value_norm", norms), ("value_norm_l1", absolute)):
        rows = frame[frame.quantity == quantity]
        assert (rows["query"] == -1).all() and rows.key.tolist() == list(range(12))
        assert rows.value.to_numpy() == pytest.approx(expected_norms.mean(0).numpy(), abs=1e-5)
    values = lengths["values"][:, layer, head]  # (B, L, D)
    apart = (values - values.mean(0)).square().sum(-1).mean(0) / values.square().sum(-1).mean(0)
    assert frame[frame.quantity == "value_spread"].value.to_numpy() == pytest.approx(apart.numpy(), abs=1e-9)
    chosen = sink_statistics(model, short, "tiny", layer=1, head=2)
    assert set(chosen.layer) == {1} and set(chosen["head"]) == {2}
    with pytest.raises(ValueError, match="layer=1 and head=None: give both or neither"):
        sink_statistics(model, short, "tiny", layer=1)
    for place in ({"layer": 0, "head": HEADS}, {"layer": 99, "head": 0}, {"layer": -1, "head": 0}):
        with pytest.raises(
            ValueError, match=rf"head={place['head']}: tiny has layers 0 to \d, heads 0 to {HEADS - 1}$"
        ):
            sink_statistics(model, short, "tiny", **place)


def test_attention_maps_are_the_averages(model, input_ids, monkeypatch):
    monkeypatch.setattr(attention, "samples_per_batch", lambda device, tokens: 2)
    profile = profile_heads(model, input_ids, window=20, threshold=0.22)
    frame = attention_maps(model, input_ids, profile, "tiny")
    weights, _ = weights_and_norms(model, input_ids)
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
    """RA-I 4, 4, 1 in the first layer and 4, 0 in the second: the median head has the RA-I of the highest."""
    rr = torch.tensor([[[0.9, 0.8, 0.1], [0.7, 0.2, float("nan")]]], dtype=torch.float64).repeat(4, 1, 1)
    rr[0, 0, 2] = 0.6
    profile = HeadProfile(rr, 5, 0.5, True, 3, 32)
    assert profile.ra_i[0].tolist() == [4, 4, 1]
    assert representative_heads(profile) == {"high": (0, 0), "mid": (0, 2), "low": (1, 1)}
    with pytest.raises(ValueError, match="2 heads have a recency ratio"):
        representative_heads(HeadProfile(rr[:, :1, :2], 5, 0.5, True, 2, 32))
