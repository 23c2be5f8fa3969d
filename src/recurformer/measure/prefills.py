"""Prefills of models with random weights on a device: their caches and peaks, and the longest prompt that fits.

The search for the longest begins at the length of the memory model. Prompts come closer and closer, until one fits and
one slightly longer does not. A prefill that runs out of memory is an answer, not a failure. Of a prefill in chunks only
the first and the last chunks are read: those between take the same memory, and hours.
"""

import gc
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from recurformer.data.backbones import meta_model, random_model
from recurformer.evict import empty_cache, evicting
from recurformer.evict.pyramidinfer import AS_PRINTED
from recurformer.measure.cache import cache_bytes, count_cache
from recurformer.measure.device import GIB, AllocatorPeak, PeakMemory, is_out_of_memory, memory_limit
from recurformer.measure.memory import PROTOCOLS, converted_twin, memory_row
from recurformer.model.prefill import IMPLEMENTATION, ReservedCache, attending_by, read_chunk

FIRST_STEP = 0.02  # the first step away from the guess, as a fraction; every further one is twice as long
TIMED_PART = 4  # divisor of a guess, for a trial that only measures speed


@dataclass(frozen=True)
class Trial:
    """One attempt: its tokens, whether they fitted, its seconds, the bytes of its cache, and of the peak beyond the
    weights. No bytes are known where they did not fit, and no peak where nothing watched it.
    """

    length: int
    fits: bool
    seconds: float
    cache_bytes: int | None = None
    peak_bytes: int | None = None


def search(fits: Callable[[int], bool], guess: int, maximum: int, tolerance: float) -> int:
    """The longest length known to fit, such that one longer by the fraction `tolerance`, at most, does not.

    Steps from the guess, longer and longer ones, until one length fits and another does not; then bisection.

    Args:
        fits: must not become true again once it is false.
        guess: where to begin.
        maximum: nothing longer is tried; when it fits it is the result.
        tolerance: fraction of the result.

    Returns:
        0 when not even one token fits.
    """
    low, high, step = 0, maximum + 1, FIRST_STEP
    length = max(1, min(guess, maximum))
    while True:
        if fits(length):
            low = length
        else:
            high = length
        if low == maximum or (high <= maximum and high - low <= max(1, tolerance * low)):
            return low
        if low and high <= maximum:
            length = (low + high) // 2
            continue
        length = min(math.ceil(low * (1 + step)), maximum) if low else max(1, int(high / (1 + step)))
        step *= 2


def longest_within(minutes: float, trial: Callable[[int], Trial], guess: int, maximum: int) -> int:
    """A length, at most `maximum`, whose trial should take no more than `minutes`.

    Judged by one trial of a fraction of the guess, as though the time grew with the square of the length: as attention
    does, and faster than all else, so that trials are rather shorter. The fraction itself is tried in any case; where
    not even that fits, time limits nothing.

    Args:
        minutes: that one trial may take.
        trial: runs one.
        guess: of the longest length that fits.
        maximum: of the result.
    """
    timed = trial(max(1, min(guess, maximum) // TIMED_PART))
    if not timed.fits:
        return maximum
    return min(maximum, max(timed.length, int(timed.length * math.sqrt(60 * minutes / max(timed.seconds, 0.01)))))


def _one_shot(model: PreTrainedModel, input_ids: Tensor, chunk: int) -> CausalLMOutputWithPast:
    return read_chunk(model, input_ids.to(model.device), DynamicCache(config=model.config))


def chunked_ends(model: PreTrainedModel, input_ids: Tensor, chunk: int) -> CausalLMOutputWithPast:
    """The first chunk and the last two of a prefill in chunks, in the memory of the whole one; logits mean nothing."""
    first, *others = input_ids.split(chunk, dim=1)
    cache = ReservedCache(model.config, input_ids.shape[1])
    reader = attending_by(model, IMPLEMENTATION)
    output = read_chunk(reader, first.to(model.device), cache)
    cache.skip(sum(part.shape[1] for part in others[:-2]))
    for part in others[-2:]:
        output = read_chunk(reader, part.to(model.device), cache)
    cache.close()
    return output


def _pyramidinfer(model: PreTrainedModel, input_ids: Tensor, chunk: int) -> CausalLMOutputWithPast:
    return read_chunk(evicting(model), input_ids.to(model.device), empty_cache(model, AS_PRINTED))


PREFILLS: dict[str, Callable[[PreTrainedModel, Tensor, int], CausalLMOutputWithPast]] = {
    "one_shot": _one_shot,
    "chunked": chunked_ends,
    "pyramidinfer": _pyramidinfer,
}
"""Name of a protocol -> f(model, prompt (1, L), tokens of a chunk) -> output with the cache. pyramidinfer is one_shot
with a cache that evicts while it is filled. The memory model does not know it: numbers decide, which it has none of."""


@torch.no_grad()
def attempt(
    model: PreTrainedModel,
    protocol: str,
    length: int,
    chunk: int,
    memory: AllocatorPeak | PeakMemory | None = None,
) -> Trial:
    """Prefill a prompt of `length` tokens, watched by `memory`; then its memory is free again, however it ended."""
    started, cache = time.perf_counter(), None
    try:
        prompt = torch.zeros(1, length, dtype=torch.long)
        with memory or nullcontext():
            output = PREFILLS[protocol](model, prompt, chunk)
        cache = int(cache_bytes(cast(Cache, output.past_key_values)).bytes.sum())
        del output
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    seconds = time.perf_counter() - started
    gc.collect()  # behind the handler: until it is left, the error holds the tensors of all its frames
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    peak = memory.peak if memory and cache is not None else None
    return Trial(length, cache is not None, round(seconds, 2), cache, peak)


def measure_longest(
    model: PreTrainedModel,
    name: str,
    beta: float,
    protocol: str,
    device: torch.device,
    *,
    memory_gib: float,
    chunk: int,
    tolerance: float,
    maximum: int,
    prefill_minutes: float | None,
    seed: int,
    mamba: dict[str, Any],
) -> pd.DataFrame:
    """Measure the longest input of one shape at one beta: a row of memory.csv.

    Args:
        model: the unconverted model; only its shape and dtype matter, its weights are drawn anew.
        name: written to the column `model`.
        beta: fraction of heads to replace, see `converted_twin`.
        protocol: a name in `PREFILLS`.
        device: to measure on; the process is limited to `memory_gib` of its memory.
        memory_gib: in GiB, for weights, cache and activations.
        chunk: tokens of a chunk in the chunked protocol.
        tolerance: see `search`.
        maximum: tokens beyond which nothing is tried.
        prefill_minutes: prompts that take longer to read in one pass are not tried; None: all are.
        seed: of weights and of the order of heads.
        mamba: d_state, d_conv, expand, dt_rank for `convert`.

    Returns:
        The columns of `measure_memory` with source "measured", activation_bytes NaN on a processor; predicted (tokens,
        by the memory model; for pyramidinfer, which it does not know, those of the original, and limit is theirs too),
        error (of it, over l_m; NaN there, and where nothing or the longest that was to be tried fitted), at_least
        (bool: that one did), trials (their number), seconds (of the trial of l_m tokens).

    Raises:
        ValueError: an unknown protocol, beta outside [0, 1], one above 0 with PyramidInfer, which is another method, or
            a limit that cannot be set on this device.
    """
    if protocol not in PREFILLS:
        raise ValueError(f"protocol={protocol!r} is unknown; choose one of {', '.join(PREFILLS)}")
    known = protocol in PROTOCOLS
    if beta and not known:
        raise ValueError(f"beta={beta:g}: {protocol} evicts from the original's cache; give beta 0")
    memory_bytes = int(memory_gib * GIB)
    twin = converted_twin(model, beta, seed, mamba)
    row = memory_row(twin, name, beta, protocol if known else "one_shot", memory_bytes, chunk)
    predicted = row["l_m"]
    done: dict[int, Trial] = {}
    built = random_model(twin.config, seed, twin.dtype, device).requires_grad_(False)

    def run(length: int) -> Trial:
        if length not in done:
            memory = AllocatorPeak() if device.type == "cuda" else None  # the limit is the measure of a processor
            done[length] = attempt(built, protocol, length, chunk, memory)
        return done[length]

    # On a processor oneDNN would generate and keep a kernel for every new length, in the memory that is measured.
    with torch.backends.mkldnn.flags(enabled=False):
        attempt(built, protocol, 2 * chunk, chunk)  # loads kernels, whose memory is not the model's
        with memory_limit(device, memory_bytes, row["weight_bytes"]):
            if protocol == "one_shot" and prefill_minutes is not None:
                maximum = longest_within(prefill_minutes, run, predicted, maximum)
            longest = search(lambda length: run(length).fits, predicted, maximum, tolerance)
    best = done.get(longest, Trial(0, False, math.nan))
    at_least = longest == maximum
    measured = {
        "protocol": protocol,
        "l_m": longest,
        "cache_bytes": best.cache_bytes or 0,
        "activation_bytes": math.nan if best.peak_bytes is None else best.peak_bytes - (best.cache_bytes or 0),
        "source": "measured",
        "predicted": predicted,
        "error": math.nan if at_least or not longest or not known else predicted / longest - 1,
        "at_least": at_least,
        "trials": len(done),
        "seconds": best.seconds,
    }
    return pd.DataFrame([{**row, **measured}])


def measure_cache_peak(
    config: PreTrainedConfig,
    name: str,
    betas: Sequence[float],
    lengths: Sequence[int],
    *,
    device: str,
    memory_gib: float,
    seed: int = 0,
    mamba: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Prefill each length with a model of one shape, batch 1 and bfloat16, at every beta: the rows of cache_peak.csv.

    Bytes of real cache objects, and the allocator's peak. Weights are random, for no byte depends on them. The same
    caches are counted on the meta device as a cross-check.

    Args:
        config: of the unconverted model.
        name: written to the column `model`.
        betas: fractions of heads to replace, 0 among them or not: the original is always measured.
        lengths: tokens of a prompt.
        device: "cuda", or "cpu" for shapes that a processor can compute.
        memory_gib: of a CUDA device's memory this process takes no more.
        seed: of the weights, and of the choice of heads, which changes nothing about whole query groups.
        mamba: d_state, d_conv, expand, dt_rank for `convert`; its defaults when absent.
        progress: called with (models done, models).

    Returns:
        model, unit, beta, length, total_bytes (in the cache), counted_bytes (the same on the meta device), ratio
        (total_bytes over the original's at the same length), peak_bytes (beyond the weights; on CUDA the allocator's,
        elsewhere of all tensors), memory_gib, device (its name). A prompt that does not fit has no total, ratio, peak.
    """
    device_name, fractions = device, sorted({0.0, *betas})
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory_gib * GIB / gpu.total_memory))
        device_name = gpu.name
    shape = meta_model(config, torch.bfloat16)
    rows: list[dict[str, Any]] = []
    for done, beta in enumerate(fractions, start=1):
        counted = converted_twin(shape, beta, seed, mamba)
        model = random_model(counted.config, seed, counted.dtype, device)
        for length in lengths:
            trial = attempt(model, "one_shot", length, 0, AllocatorPeak() if device == "cuda" else PeakMemory())
            expected = int(count_cache(counted, length).bytes.sum())
            place = {"model": name, "unit": "kv_group", "beta": beta, "length": length}
            sizes = {"total_bytes": trial.cache_bytes, "counted_bytes": expected, "peak_bytes": trial.peak_bytes}
            rows.append(place | sizes | {"memory_gib": memory_gib, "device": device_name})
        del model  # two models of 7B and a long cache do not fit together
        gc.collect()
        if progress is not None:
            progress(done, len(fractions))
    frame = pd.DataFrame(rows).astype({"total_bytes": "Int64", "peak_bytes": "Int64"})
    original_bytes = frame[frame.beta == 0].set_index("length").total_bytes
    frame.insert(6, "ratio", (frame.total_bytes / frame.length.map(original_bytes)).astype("Float64"))
    return frame
