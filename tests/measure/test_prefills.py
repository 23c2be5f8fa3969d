"""The search for the longest length that fits, prefills in a process with a limit to its memory, and their peaks."""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig

from recurformer.cli.main import main
from recurformer.data.backbones import make_random
from recurformer.evict.pyramidinfer import pyramid_lengths
from recurformer.measure import prefills
from recurformer.measure.device import is_out_of_memory, memory_fraction, memory_limit
from recurformer.measure.memory import PROTOCOLS
from recurformer.measure.prefills import PREFILLS, Trial, attempt, longest_within, measure_cache_peak, search
from recurformer.model.convert import convert
from recurformer.model.prefill import prefill


def counted_search(limit, guess, maximum=10**6, tolerance=0.01):
    tried = []

    def fits(length):
        tried.append(length)
        return length <= limit

    return search(fits, guess, maximum, tolerance), tried


@pytest.mark.parametrize("limit", [0, 1, 2, 99, 1_000, 71_680, 10**6])
@pytest.mark.parametrize("guess", [0, 1, 1_000, 70_000, 10**7])
def test_the_longest_that_fits_within_the_tolerance(limit, guess):
    found, tried = counted_search(limit, guess)
    assert found <= limit <= max(found * 1.01, found)
    assert all(1 <= length <= 10**6 for length in tried) and len(tried) == len(set(tried))
    assert found == 0 or found in tried


def test_a_good_guess_takes_few_trials():
    for limit in (99_000, 100_000, 101_000):
        assert len(counted_search(limit, 100_000)[1]) <= 4


@pytest.mark.parametrize("guess", [1, 400, 498, 10**6])
def test_nothing_beyond_the_maximum_is_tried(guess):
    found, tried = counted_search(10**9, guess, maximum=500)
    assert found == max(tried) == 500


@pytest.mark.parametrize(
    ("minutes", "maximum", "longest"),
    [(4, 10**6, 200_000), (1, 10**6, 100_000), (1, 60_000, 60_000), (1e-9, 10**6, 25_000)],
)
def test_the_longest_within_some_minutes_is_told_from_a_short_trial(minutes, maximum, longest):
    """Quadratic: 100,000 tokens take a minute. The short trial itself is always tried."""
    lengths = []

    def trial(length):
        lengths.append(length)
        return Trial(length, True, 60 * (length / 100_000) ** 2)

    assert longest_within(minutes, trial, 100_000, maximum) == pytest.approx(longest, rel=0.01)
    assert lengths == [min(maximum, 100_000) // 4]


def test_no_trial_is_allowed_that_takes_longer():
    """Where a part of the time grows with the length alone, the square law finds too short a length, never too long."""

    def trial(length):
        return Trial(length, True, 30 * length / 100_000 + 30 * (length / 100_000) ** 2)

    found = longest_within(1, trial, 100_000, 10**6)
    assert 0.6 * 100_000 < found <= 100_000 and trial(found).seconds <= 60


def test_time_limits_nothing_where_not_even_the_short_trial_fits():
    assert longest_within(1, lambda length: Trial(length, False, 99.0), 100_000, 10**6) == 10**6


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which limits a process's data")
MIB = 2**20
CPU = torch.device("cpu")
LIMIT = 48 * MIB
"""Several times what the libraries of a process now and then take besides: the stack of one thread is 8 MiB."""
SHAPE = {
    "source": "random", "architecture": "qwen2", "hidden_size": 128, "layers": 16, "heads": 2, "kv_heads": 2,
    "head_dim": 64, "intermediate_size": 64, "tokenizer": "hash", "vocabulary": 64,
}  # fmt: skip
CACHE_BYTES = 16 * 2 * 2 * 64 * 2
"""Of a token in bfloat16: much beside the weights, so that short prompts fill the memory."""


def words(folder, protocol, beta=0.0, **search):
    settings = {"memory_gib": LIMIT / 2**30, "chunk": 64, "backbone": SHAPE, "search": search}
    settings |= {"mamba": {"d_state": 4, "dt_rank": 8}}
    files = [str(folder / "memory.csv"), "--record", str(folder / "memory.run.json"), "--name", "tiny"]
    where = ["--beta", str(beta), "--protocol", protocol]
    return ["longest-input", *files, *where, "--settings", json.dumps(settings)]


def measured(folder, protocol, **options):
    assert main(words(folder, protocol, **options)) == 0
    (row,) = pd.read_csv(folder / "memory.csv").to_dict("records")
    return row


@pytest.fixture(scope="module")
def in_a_fresh_process():
    """Calls a function in a process that has only imported what it needs. One that has worked before has memory which
    it was given already, and which no limit takes back. One thread: the stacks of others would count.
    """
    one = {"initializer": torch.set_num_threads, "initargs": (1,)}
    context = get_context("forkserver")
    context.set_forkserver_preload(
        ["recurformer.cli.main", "recurformer.measure.prefills", "recurformer.data.backbones"]
    )

    def call(function, *given):
        with ProcessPoolExecutor(1, mp_context=context, **one) as pool:
            return pool.submit(function, *given).result()

    return call


def run_out_of_memory_and_recover():
    with memory_limit(CPU, 64 * MIB, held_bytes=0):
        with pytest.raises(RuntimeError) as caught:
            torch.empty(80 * MIB, dtype=torch.uint8)
        assert is_out_of_memory(caught.value)
        assert len(torch.empty(32 * MIB, dtype=torch.uint8)) == 32 * MIB
    assert len(torch.empty(80 * MIB, dtype=torch.uint8)) == 80 * MIB
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasGemmEx"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_limited_process_runs_out_of_memory_and_recovers(in_a_fresh_process):
    in_a_fresh_process(run_out_of_memory_and_recover)


def searched(folder, protocol, **options):
    """The row of a search, and all its trials."""
    kept = []
    prefills.attempt = lambda *given: kept.append(attempt(*given)) or kept[-1]
    return measured(folder, protocol, **options), kept


def test_the_measured_length_fits_and_a_slightly_longer_one_does_not(in_a_fresh_process, tmp_path):
    found = {name: in_a_fresh_process(searched, tmp_path / name, name) for name in ("one_shot", "chunked")}
    rows = {protocol: row for protocol, (row, _) in found.items()}
    kept = [trial for _, trials in found.values() for trial in trials]
    assert set(rows) == {*PROTOCOLS} - {"all_logits"} == {*PREFILLS} - {"pyramidinfer"}  # that one is only computed
    for row in rows.values():
        assert row["source"] == "measured" and not row["at_least"]
        assert abs(row["error"]) < 0.5, "what a processor's libraries take, the model leaves out"
        assert row["error"] == pytest.approx(row["predicted"] / row["l_m"] - 1)
        assert row["cache_bytes"] == CACHE_BYTES * row["l_m"]
    assert rows["one_shot"]["predicted"] < rows["chunked"]["predicted"]
    assert rows["chunked"]["l_m"] < 1.3 * rows["chunked"]["limit"], "what the imports freed comes on top of the limit"
    lengths = {row["l_m"] for row in rows.values()}
    assert lengths <= {trial.length for trial in kept if trial.fits}
    for length in lengths:
        assert any(length < trial.length <= 1.011 * length for trial in kept if not trial.fits)


def test_the_longest_input_of_pyramidinfer_is_measured_too(in_a_fresh_process, tmp_path, capsys):
    row = in_a_fresh_process(partial(measured, tmp_path, "pyramidinfer", tolerance=0.9))
    assert (row["protocol"], row["beta"], row["source"], row["at_least"]) == ("pyramidinfer", 0.0, "measured", False)
    kept = sum(pyramid_lengths(row["l_m"], layers=16))
    assert row["cache_bytes"] == kept * (CACHE_BYTES // 16 + 2 * 4), "two heads keep the places of their tokens"
    assert row["l_m"] > row["predicted"], "the original's, by the memory model"
    assert pd.isna(row["error"])
    assert main(words(tmp_path, "pyramidinfer", beta=0.5)) == 1
    assert "beta=0.5: pyramidinfer evicts from the original's cache; give beta 0" in capsys.readouterr().err


def test_a_ceiling_is_said_to_be_one(tmp_path):
    """That the ends of a prompt take the memory of all of it: tests/model/test_prefill.py."""
    row = measured(tmp_path, "chunked", beta=0.5, maximum=330)
    assert (row["l_m"], row["at_least"], row["trials"]) == (330, True, 1)
    assert 330 * CACHE_BYTES / 2 < row["cache_bytes"] < 330 * CACHE_BYTES
    assert row["mamba_parameters"] > 0 and pd.isna(row["error"])
    record = json.loads((tmp_path / "memory.run.json").read_text())
    assert record["settings"]["memory_gib"] == LIMIT / 2**30


def test_prompts_that_take_too_long_are_not_tried(in_a_fresh_process, tmp_path):
    """No prompt is read in a microsecond: only the one by which that is known."""
    row, kept = in_a_fresh_process(partial(searched, tmp_path, "one_shot", prefill_minutes=1e-8))
    assert row["l_m"] == row["predicted"] // 4 == max(trial.length for trial in kept)
    assert (row["at_least"], row["trials"]) == (True, 1) and pd.isna(row["error"])


def test_what_is_no_lack_of_memory_is_not_taken_for_one(monkeypatch):
    class Broken:
        device = CPU

    def fail(*given):
        raise RuntimeError("wrong shapes")

    monkeypatch.setitem(PREFILLS, "chunked", fail)
    with pytest.raises(RuntimeError, match="wrong shapes"):
        attempt(Broken(), "chunked", 4, 2)


def test_an_unknown_protocol_is_refused(tmp_path, capsys):
    assert main(words(tmp_path, "chunk")) == 1
    assert "protocol='chunk' is unknown; choose one of one_shot, chunked, pyramidinfer" in capsys.readouterr().err


@pytest.mark.parametrize(("shown", "fraction"), [(79.15, 1.0), (139.8, 80 / 139.8)])
def test_a_gpu_of_80_gb_is_one_although_it_shows_less(shown, fraction):
    """An A100 of 80 GB shows 79.15 GiB: the paper's own GPU would be refused."""
    assert memory_fraction(80 * 2**30, shown * 2**30) == pytest.approx(fraction)
    with pytest.raises(ValueError, match="the GPU has"):
        memory_fraction(2**40, shown * 2**30)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_limited_gpu_runs_out_of_memory_and_recovers():
    gpu = torch.device("cuda")
    with memory_limit(gpu, 256 * MIB, held_bytes=0):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(512 * MIB, dtype=torch.uint8, device=gpu)
        torch.empty(64 * MIB, dtype=torch.uint8, device=gpu)
    with pytest.raises(ValueError, match="the GPU has"), memory_limit(gpu, 2**50, held_bytes=0):
        pass


CHUNK = 1024


def peaks_on_a_gpu(read, model, length):
    """Most bytes that torch's allocator gave out, and most that it took from the GPU."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        read(model, torch.zeros(1, length, dtype=torch.long), CHUNK)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("replaced", [0, 16, 24])
def test_first_and_last_chunks_take_the_memory_of_all_on_a_gpu(replaced):
    """Of models with 32 heads. Attention of few heads splits the keys among processors, the more the longer they are,
    and each takes memory for its part: such a model may need up to 5 % more in a chunk in between.
    """
    base = make_random(hidden_size=1024, layers=4, heads=32, kv_heads=8, head_dim=64, intermediate_size=1024)
    model = convert(base, [list(range(replaced))] * 4).requires_grad_(False).to("cuda", torch.bfloat16)
    peaks_on_a_gpu(prefill, model, 2 * CHUNK)  # loads kernels
    for length in (16_384, 65_536, 100_000):
        (ends, taken), (whole, taken_by_all) = (
            peaks_on_a_gpu(read, model, length) for read in (PREFILLS["chunked"], prefill)
        )
        assert ends == pytest.approx(whole, rel=0.01)
    assert taken == pytest.approx(taken_by_all, rel=0.05)  # the allocator takes pieces of 20 MiB and more


MAMBA = {"d_state": 4, "d_conv": 4, "expand": 2, "dt_rank": 4}
LENGTHS = [64, 256]


def config():
    return LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64,
    )  # fmt: skip


def peaks(device="cpu"):
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
    frame = peaks()
    check(frame)
    assert set(frame.device) == {"cpu"}


def test_what_does_not_fit_has_no_value(monkeypatch):
    read = PREFILLS["one_shot"]

    def too_much(model, input_ids, chunk):
        return torch.empty(2**60) if input_ids.shape[1] == 256 else read(model, input_ids, chunk)

    monkeypatch.setitem(PREFILLS, "one_shot", too_much)
    frame = peaks()
    lost = frame[frame.length == 256]
    assert lost[["total_bytes", "peak_bytes", "ratio"]].isna().all(axis=None)
    assert lost.counted_bytes.notna().all()
    assert frame[frame.length == 64].ratio.notna().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_allocator_sees_the_same_caches():
    frame = peaks("cuda")
    check(frame)
    assert set(frame.device) == {torch.cuda.get_device_name()}
