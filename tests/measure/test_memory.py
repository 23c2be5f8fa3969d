"""The memory model and the peak of tensors."""

import gc
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from recurformer import convert
from recurformer.data.backbones import load_shape, meta_model
from recurformer.measure import memory as memory_module
from recurformer.measure.device import PeakMemory
from recurformer.measure.memory import longest_input, longest_length, measure_memory, weight_bytes
from recurformer.model.prefill import attending_by
from recurformer.results.cells import growth_exponent

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 64,
}
DEVICES = ["cpu", "meta"]
NOTES = (Path(__file__).parents[2] / "docs/replication-notes.md").read_text()


def tiny():
    return meta_model(LlamaConfig(**TINY))


@pytest.mark.parametrize("device", DEVICES)
def test_peak_by_hand(device):
    before = torch.ones(1000, device=device)  # 4,000 bytes that do not count
    with PeakMemory() as memory:
        one = before + 1
        two = one * 2  # 8,000
        view = two.view(10, 100)  # a view costs nothing
        del one, two
        before.add_(1)
        assert memory.current == 4000  # the view keeps its storage
        del view
        assert memory.current == 0
        half = before.to(torch.float16)
    assert memory.peak == 8000 and memory.current == half.numel() * 2
    del half
    gc.collect()
    assert memory.current == 2000  # what happens behind the block is not counted any more


@pytest.mark.parametrize("device", DEVICES)
def test_included_tensors_count_until_they_die(device):
    old = [torch.ones(1000, device=device)]
    with PeakMemory(include=old) as memory:
        assert memory.peak == 4000
        grown = torch.cat([old[0], old[0][:1]])
        assert memory.peak == 4000 + 4004
        old.clear()
        assert memory.current == 4004
    del grown


def test_resized_storages_are_counted_anew():
    with PeakMemory() as memory:
        tensor = torch.ones(1000)
        tensor.resize_(3000)
        assert memory.current == memory.peak == 12_000


def test_what_autograd_keeps_is_alive():
    weight = torch.ones(1000, requires_grad=True)
    with PeakMemory() as memory:
        loss = (weight * 2).exp().sum()  # exp keeps its result, only inside the graph
        assert memory.current == 4004
        del loss
        assert memory.current == 0


def test_meta_and_cpu_agree_on_a_model():
    peaks = []
    for device in DEVICES:
        torch.manual_seed(0)
        model = LlamaForCausalLM._from_config(LlamaConfig(**TINY), attn_implementation="eager").eval().to(device)
        model = convert(model, [[0, 1], [0, 1, 2, 3]], d_state=4, dt_rank=2)
        cache = DynamicCache(config=model.config)
        with torch.no_grad(), PeakMemory() as memory:
            model(torch.zeros(1, 50, dtype=torch.long, device=device), past_key_values=cache, use_cache=True)
        peaks.append(memory.peak)
    assert peaks[0] == pytest.approx(peaks[1], rel=0.02) and peaks[0] > 50 * 50 * 4


def test_longest_length():
    for limit in (0, 1, 2, 63, 64, 65, 1000):
        assert longest_length(lambda length, limit=limit: length <= limit) == limit
        assert longest_length(lambda length: True, maximum=limit) == limit


@pytest.mark.parametrize(
    ("protocol", "heads"),
    [
        ("one_shot", [[], []]),
        ("chunked", [[], []]),
        ("chunked", [[0, 1], []]),
        ("one_shot", [[0, 1, 2, 3], [0, 1]]),
        ("all_logits", [[0, 1], []]),
    ],
)
def test_longest_input_is_the_longest(protocol, heads):
    """The affine model agrees with measuring at the length itself, and one step beyond it does not fit."""
    model = convert(tiny(), heads, d_state=4, dt_rank=8)
    budget = 2**26
    result = longest_input(model, budget, protocol, chunk=256)
    length = result["l_m"]
    assert length > 20_000
    measured = memory_module.PROTOCOLS[protocol]
    with torch.no_grad():
        peak, cache = measured(attending_by(model, memory_module.IMPLEMENTATION), length, 256)
    slack = 2**14  # scan blocks of 32 tokens are rounded up
    assert result["weight_bytes"] == weight_bytes(model)
    assert cache == pytest.approx(result["cache_bytes"], abs=slack)
    assert peak == pytest.approx(result["cache_bytes"] + result["activation_bytes"], abs=slack)
    assert budget - slack < result["weight_bytes"] + peak <= budget + slack


@pytest.mark.parametrize(("shape", "beta"), [("llama2-7b", 0.0), ("qwen2-7b", 0.9)])
def test_a_prefill_in_chunks_comes_near_the_limit_of_the_gpu(shape, beta):
    """The limit by hand: what the weights leave of 80 GiB, by keys and values of the retained heads."""
    converted = memory_module.converted_twin(meta_model(load_shape(shape)), beta)
    row = longest_input(converted, 80 * 2**30, "chunked")
    config = converted.config
    size = config.hidden_size // config.num_attention_heads
    group = config.num_attention_heads // config.num_key_value_heads
    kept = config.num_hidden_layers * config.num_key_value_heads - sum(map(len, config.recurrent_heads)) // group
    by_hand = (80 * 2**30 - row["weight_bytes"]) / (kept * 2 * size * 2)
    assert row["limit"] == pytest.approx(by_hand, rel=0.001)
    assert 0.99 * row["limit"] < row["l_m"] <= row["limit"]


@pytest.mark.parametrize(
    ("shape", "printed"), [("llama2-7b", "71,680"), ("qwen2-7b", "122,880"), ("qwen2-0.5b", "133,120")]
)
def test_what_is_said_of_the_logits_of_every_token(shape, printed):
    longest = longest_input(meta_model(load_shape(shape)), 80 * 2**30, "all_logits")["l_m"]
    assert re.search(rf"{longest:,} (tokens )?\([\w.-]+; (printed )?{printed}\)", NOTES)


def test_a_model_that_does_not_fit_is_left_as_it_was():
    model = tiny()
    before = model.config._attn_implementation
    assert longest_input(model, 1000)["l_m"] == 0
    assert model.config._attn_implementation == before


def test_one_shot_activations_are_linear():
    """Negative control of the fused attention: eager scores would make the peak quadratic."""
    model = tiny()
    peaks = {}
    for name in (memory_module.IMPLEMENTATION, "eager"):
        reader = attending_by(model, name)
        with torch.no_grad():
            sizes = [memory_module.peak_one_shot(reader, length, 0)[0] for length in (4096, 8192, 16384)]
        peaks[name] = growth_exponent(np.array([4096, 8192, 16384]), np.array(sizes))
    assert peaks[memory_module.IMPLEMENTATION] == pytest.approx(1, abs=0.02)
    assert peaks["eager"] > 1.9


def test_rows_of_memory_csv():
    frame = measure_memory(tiny(), "tiny", [0, 0.5, 1.0], memory_gib=0.1, chunk=256, mamba={"dt_rank": 8, "d_state": 4})
    assert list(frame.columns) == [
        "model", "beta", "protocol", "parameters", "mamba_parameters", "l_m", "limit", "weight_bytes", "cache_bytes",
        "activation_bytes", "memory_bytes", "source",
    ]  # fmt: skip
    assert set(frame.source) == {"model"} and len(frame) == 9 and (frame.memory_bytes == int(0.1 * 2**30)).all()
    used = frame.weight_bytes + frame.cache_bytes + frame.activation_bytes
    assert (used <= frame.memory_bytes).all() and (used > 0.99 * frame.memory_bytes).all()
    chunked = frame[frame.protocol == "chunked"]
    assert np.all(np.diff(chunked.l_m) > 0)
    width, values, inner, state, rank = 32, 16, 64, 4, 8  # of the Mamba block at beta 1, in each of the 2 layers
    linear = values * 2 * inner + inner * (rank + 2 * state) + (rank + 1) * inner + inner * width
    whole_block = linear + inner * (4 + 1) + inner * state + inner  # convolution and its bias, A, D
    assert chunked.mamba_parameters.iloc[[0, 2]].tolist() == [0, 2 * whole_block]
    queries_and_keys = 2 * (32 * 32 + 32 * 16)  # of both layers: what a model without attention has lost
    plain = tiny().num_parameters()
    assert chunked.parameters.iloc[[0, 2]].tolist() == [plain, plain - queries_and_keys + 2 * whole_block]
    assert 0 < chunked.mamba_parameters.iloc[1] < chunked.mamba_parameters.iloc[2]
    one_shot = frame[frame.protocol == "one_shot"]
    assert one_shot.parameters.tolist() == chunked.parameters.tolist()
