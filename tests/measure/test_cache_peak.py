"""Caches and peaks of real tensors on a small shape: what a card is asked for at full size."""

import pytest
import torch
from transformers import LlamaConfig

from recurformer.cli.main import main
from recurformer.measure import memory
from recurformer.measure.memory import measure_cache_peak

MAMBA = {"d_state": 4, "d_conv": 4, "expand": 2, "dt_rank": 4}
LENGTHS = [64, 256]


def config():
    return LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64,
    )  # fmt: skip


def measured(device="cpu"):
    return measure_cache_peak(config(), "tiny", [0.5, 1.0], LENGTHS, device=device, memory_gib=1.0, mamba=MAMBA)


def check(frame):
    assert frame.beta.tolist() == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert frame.total_bytes.tolist() == frame.counted_bytes.tolist()
    original = frame[frame.beta == 0].set_index("length")
    # keys and values: 2 layers, 2 KV heads of 16 numbers of 2 bytes
    assert original.total_bytes.to_dict() == {length: 2 * 2 * 2 * 16 * 2 * length for length in LENGTHS}
    assert original.ratio.tolist() == [1.0, 1.0]
    half, whole = (frame[frame.beta == beta].set_index("length") for beta in (0.5, 1.0))
    assert 0.5 < half.ratio[256] < half.ratio[64]
    grown, usual = (cache.total_bytes[256] - cache.total_bytes[64] for cache in (whole, original))
    assert grown < 0.02 * usual  # without attention one layer keeps a number for each token, to count them
    assert (frame.peak_bytes > frame.total_bytes).all()
    short, long = (frame[frame.length == length].peak_bytes.to_numpy() for length in LENGTHS)
    assert (long > short).all()  # what a pass holds grows with its tokens


def test_real_caches_are_the_counted_ones():
    frame = measured()
    check(frame)
    assert set(frame.device) == {"cpu"}


def test_what_does_not_fit_has_no_value(monkeypatch):
    prefill = memory._prefill
    monkeypatch.setattr(memory, "_prefill", lambda model, length: None if length == 256 else prefill(model, length))
    frame = measured()
    lost = frame[frame.length == 256]
    assert lost[["total_bytes", "peak_bytes", "ratio"]].isna().all(axis=None)
    assert lost.counted_bytes.notna().all()
    assert frame[frame.length == 64].ratio.notna().all()


class Failing:
    """A model whose forward pass fails."""

    device = torch.device("cpu")

    def __init__(self, reason):
        self.config, self.reason = config(), reason

    def __call__(self, *given, **named):
        raise RuntimeError(self.reason)


def test_a_lack_of_memory_is_told_from_other_failures():
    assert memory._prefill(Failing("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasGemmEx"), 4) is None
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        memory._prefill(Failing("mat1 and mat2 shapes cannot be multiplied"), 4)


def test_a_missing_card_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ["--name", "x", "--betas", "0.5", "--backbone-source", "shape", "--backbone-shape", "llama2-7b"]
    assert main(["cache-peak", str(tmp_path / "memory.csv"), *words]) == 1
    assert "torch finds no CUDA device" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_allocator_sees_the_same_caches():
    frame = measured("cuda")
    check(frame)
    assert set(frame.device) == {torch.cuda.get_device_name()}
