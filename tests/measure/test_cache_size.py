"""Caches counted on the meta device: against real caches, and against what the paper prints."""

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from recurformer import HeadProfile, convert
from recurformer.data.backbones import load_shape, make_random, meta_model
from recurformer.data.sizes import PUBLISHED
from recurformer.evict.pyramidinfer import PyramidInferPaper, pyramidinfer_rows
from recurformer.measure.cache import (
    cache_bytes,
    count_cache,
    freed_kv_heads,
    full_bytes,
    held_bytes,
    held_ratio,
    measure_cache,
)
from tests.measure.test_memory import TINY, tiny
from tests.model.tiny_models import PAIRS, SMALL, make_backbone, make_converted, tokens

# Tables 2 and 4, Llama2-7B, as printed
PRINTED = {
    10_240: {0.00: 1.0000, 0.25: 0.7510, 0.50: 0.5020, 0.75: 0.2530, 0.90: 0.1030, 1.00: 0.0040},
    61_440: {0.00: 1.0000, 0.25: 0.7500, 0.50: 0.5000, 0.75: 0.2500, 0.90: 0.1000, 1.00: 0.0010},
}


@torch.no_grad()
def real_cache(model, length: int):
    cache = DynamicCache(config=model.config)
    model(tokens(1, length), past_key_values=cache, use_cache=True)
    return cache_bytes(cache)


@pytest.mark.parametrize(("backbone", "heads"), PAIRS)
def test_every_family_is_counted_as_it_runs(backbone, heads):
    for model in (make_backbone(backbone), make_converted(backbone, heads)):
        for length in (1, 17):
            assert count_cache(model, length).equals(real_cache(model, length))
    rows = measure_cache(make_backbone(backbone), "tiny", [0.0, 0.5, 1.0], lengths=[20])
    sliding = ["layer_types" in SMALL.get(backbone, {})].count(True)
    assert rows[rows.unit == "kv_group"].heads_replaced.tolist() == [0, 3 * (3 - sliding), 6 * (3 - sliding)]


@pytest.mark.parametrize(
    ("heads", "dtype", "length"),
    [
        ([[], []], torch.bfloat16, 37),
        ([[0, 1], []], torch.float32, 1),
        ([[0], [1, 2, 3]], torch.bfloat16, 3),
        ([[0, 1, 2, 3], [2, 3]], torch.float32, 37),
        ([[0, 1, 2, 3], [0, 1, 2, 3]], torch.bfloat16, 1),
    ],
)
def test_meta_count_equals_the_cache_of_a_real_run(heads, dtype, length):
    model = convert(LlamaForCausalLM(LlamaConfig(**TINY)).to(dtype), heads, d_state=3, dt_rank=2).eval()
    counted = count_cache(model, length)
    assert counted.equals(real_cache(model, length))
    assert counted.bytes.sum() > 0
    states = counted[counted.kind == "recurrent_state"]
    assert set(states["dtype"]) <= {"float32"} and len(states) == sum(map(bool, heads))


def test_counts_by_hand():
    model = convert(tiny(), [[0, 1], []], d_state=3, d_conv=4, expand=2)
    kinds = count_cache(model, 10).set_index(["layer", "kind"]).bytes.to_dict()
    assert kinds == {
        (0, "key"): 10 * 1 * 8 * 2,  # tokens x KV heads x head_dim x bytes
        (0, "value"): 10 * 1 * 8 * 2,
        (0, "conv_state"): 2 * (2 * 8) * 4 * 2,  # expand x (replaced heads x head_dim) x d_conv x bytes
        (0, "recurrent_state"): 2 * (2 * 8) * 3 * 4,
        (1, "key"): 10 * 2 * 8 * 2,
        (1, "value"): 10 * 2 * 8 * 2,
    }


def test_splitting_a_group_frees_nothing():
    """Under unit `head` a key-value head stays while one of its query heads attends."""
    base = tiny()

    def kv(heads: list[list[int]]) -> int:
        frame = count_cache(convert(base, heads), 50)
        return int(frame[frame.kind.isin(["key", "value"])].bytes.sum())

    assert kv([[0, 2], []]) == kv([[], []]) == 2 * kv([[0, 1], [2, 3]])
    assert freed_kv_heads([[0, 2], []], 4, 2) == 0 and freed_kv_heads([[0, 1], [0, 1, 2, 3]], 4, 2) == 3


def test_llama2_cells_of_table_4():
    base = meta_model(load_shape("llama2-7b"))
    found = measure_cache(base, "llama2-7b", [*PRINTED[10_240]], lengths=[*PRINTED], units=["kv_group"])
    assert len(found) == 12
    for row in found.itertuples():
        assert round(row.ratio, 3) == round(PRINTED[row.length][row.beta], 3)
        # the closed formula: fp32 recurrent state, and a conv state of 2 (c = 36) or 4 bytes (c = 40)
        fraction = round(1024 * row.beta) / 1024
        width = {"conv:bfloat16 recurrent:float32": 36, "conv:float32 recurrent:float32": 40, "": 0}[row.state_dtype]
        # at beta = 1 the first layer stores one scalar pair per token to know how many it has seen
        ticks = 1 / (32 * 4096) if row.beta == 1 else 0
        assert row.ratio == pytest.approx(1 - fraction + width * fraction / row.length + ticks, abs=1e-12)
        assert row.heads_replaced == row.kv_heads_freed == round(1024 * row.beta)
        assert row.total_bytes == row.kv_bytes + row.conv_bytes + row.recurrent_bytes


def test_rows_of_cache_csv_with_a_profile():
    profile = HeadProfile(torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(0)), 5, 0.5, True, 2, 32)
    base = LlamaForCausalLM(LlamaConfig(**TINY))  # on the CPU: only its shape counts
    calls = []
    frame = measure_cache(base, "tiny", [0, 0.5], [64, 128], profile=profile, progress=lambda *a: calls.append(a))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert len(frame) == 2 * 2 * 2 and set(frame.ranking) == {"profile"} and (frame[frame.beta == 0].ratio == 1).all()
    group, head = (frame[(frame.unit == unit) & (frame.beta == 0.5)] for unit in ("kv_group", "head"))
    assert (group.kv_heads_freed == 2).all() and (head.kv_heads_freed <= 2).all()
    assert (head.heads_replaced == 4).all()
    assert list(frame.columns) == [
        "model", "unit", "beta", "length", "kv_bytes", "conv_bytes", "recurrent_bytes", "total_bytes", "state_dtype",
        "ratio", "heads_replaced", "kv_heads_freed", "ranking",
    ]  # fmt: skip


def test_bad_input_is_refused():
    base = tiny()
    with pytest.raises(ValueError, match=r"beta=2 must lie in \[0, 1\]"):
        measure_cache(base, "tiny", [2])
    wrong = HeadProfile(torch.rand(1, 3, 4), 5, 0.5, True, 2, 32)
    with pytest.raises(ValueError, match=r"profile is of \(3, 4\) layers and heads, model tiny has \(2, 4\)"):
        measure_cache(base, "tiny", [0.5], profile=wrong)


@pytest.mark.parametrize("shape", PUBLISHED)
def test_a_full_cache_is_what_the_original_really_holds(shape):
    dtype = torch.bfloat16
    counted = count_cache(meta_model(load_shape(shape), dtype), 64).bytes.sum()
    assert full_bytes(load_shape(shape), dtype) == counted / 64


def test_a_head_size_of_its_own_counts():
    model = make_random("llama", hidden_size=32, layers=2, heads=4, kv_heads=1, head_dim=12, vocab_size=16)
    cache = DynamicCache(config=model.config)
    model(torch.zeros(2, 5, dtype=torch.long), past_key_values=cache)
    assert held_bytes(cache, 10, torch.float32) == full_bytes(model.config, torch.float32) == 2 * 2 * 12 * 4
    assert held_ratio([held_bytes(cache, 10, torch.float32), 0.0], model.config, torch.float32) == 0.5


def test_pyramidinfer_as_printed():
    """The cache really keeps what the arithmetic says of the longer prompt too: the printed 0.1054 and 0.1043."""
    rows = pyramidinfer_rows([10_240]).to_dict("records")
    assert [(row["method"], row["source"], round(row["ratio"], 4)) for row in rows] == [
        ("pyramidinfer", "counted", 0.1054)
    ]
    lengths = PyramidInferPaper(1.0, keep=0.7).lengths
    assert rows[0]["ratio"] == sum(lengths(10_240, 32)) / (32 * 10_240)
    assert round(sum(lengths(61_440, 32)) / (32 * 61_440), 4) == 0.1043
