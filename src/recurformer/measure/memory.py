"""Memory of full-size models, computed: l_m of Tables 2 and 4.

    memory = weights + cache + activations

Weights are the model's parameters and buffers. The rest is the peak of the tensors that the model's own code holds
during a forward pass on the meta device (`PeakMemory`), with fused attention and, but for the protocol all_logits, the
logits of the last token only.
It leaves out the CUDA context, the allocator's rounding and fragmentation, and the kernels' inner workspace. Real
GPUs therefore hold somewhat less.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from recurformer.heads.select import random_ranking, rank_heads
from recurformer.measure.cache import cache_bytes, cache_tensors, meta_twin
from recurformer.measure.device import GIB, PeakMemory
from recurformer.model.convert import convert
from recurformer.model.layout import sliding_layers
from recurformer.model.prefill import IMPLEMENTATION, ReservedCache, attending_by, read_chunk

PROBES = (16_384, 32_768)  # the peak is affine between and beyond: both are far above all constant terms


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers, shared ones once."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _tokens(count: int) -> Tensor:
    return torch.empty(1, count, dtype=torch.long, device="meta")


def peak_one_shot(model: PreTrainedModel, length: int, chunk: int) -> tuple[int, int]:
    """(peak of cache and activations, cache afterwards) in bytes when the whole prompt is one forward pass."""
    cache = DynamicCache(config=model.config)
    with PeakMemory() as memory:
        read_chunk(model, _tokens(length), cache)
    return memory.peak, int(cache_bytes(cache).bytes.sum())


def peak_all_logits(model: PreTrainedModel, length: int, chunk: int) -> tuple[int, int]:
    """The same with the logits of every token, then in float32: so `generate()` read a prompt before transformers 4.45
    (its pull request 31292).
    """
    cache = DynamicCache(config=model.config)
    with PeakMemory() as memory:
        logits = model(_tokens(length), past_key_values=cache, use_cache=True).logits
        _ = logits.float()  # both at once
    return memory.peak, int(cache_bytes(cache).bytes.sum())


def peak_chunked(model: PreTrainedModel, length: int, chunk: int) -> tuple[int, int]:
    """The same for the last of the chunks of `chunk` tokens; all but the first have the same peak."""
    if length <= chunk:
        return peak_one_shot(model, length, chunk)
    cache = ReservedCache(model.config, length)
    read_chunk(model, _tokens(length - chunk), cache)
    with PeakMemory(include=[tensor for *_, tensor in cache_tensors(cache)]) as memory:
        read_chunk(model, _tokens(chunk), cache)
    return memory.peak, int(cache_bytes(cache).bytes.sum())


# name -> f(model on the meta device, prompt tokens, tokens of a chunk) -> (peak bytes, cache bytes)
PROTOCOLS: dict[str, Callable[[PreTrainedModel, int, int], tuple[int, int]]] = {
    "one_shot": peak_one_shot,
    "chunked": peak_chunked,
    "all_logits": peak_all_logits,
}


def longest_length(fits: Callable[[int], bool], maximum: int = 2**40) -> int:
    """The largest n in 0 .. maximum with fits(n), by bisection; `fits` must not become true again once it is false."""
    return bisect_left(range(1, maximum + 1), True, key=lambda length: not fits(length))


@torch.no_grad()
def longest_input(
    model: PreTrainedModel, memory_bytes: int, protocol: str = "one_shot", chunk: int = 1024
) -> dict[str, int]:
    """Compute the longest prompt of one model, batch 1.

    The peak is measured at the two lengths `PROBES` and extended as a straight line, which it is up to rounding to
    whole scan blocks; the longest length is found by bisection.

    Args:
        model: causal language model, converted or not; class, config and dtype matter, weights do not.
        memory_bytes: the GPU's memory.
        protocol: a name in `PROTOCOLS`.
        chunk: tokens of a chunk in the chunked protocol.

    Returns:
        l_m (0 when not even one token fits), and at this length weight_bytes, cache_bytes, activation_bytes (bytes);
        limit: tokens whose cache alone fills the memory beside the weights, which no prefill can exceed.
    """
    twin = meta_twin(model)
    reader = attending_by(twin, IMPLEMENTATION)
    (peak_a, cache_a), (peak_b, cache_b) = (PROTOCOLS[protocol](reader, length, chunk) for length in PROBES)

    def line(value_a: int, value_b: int, length: int) -> int:
        return value_a + (value_b - value_a) * (length - PROBES[0]) // (PROBES[1] - PROBES[0])

    weights = weight_bytes(twin)
    longest = longest_length(lambda length: weights + line(peak_a, peak_b, length) <= memory_bytes)
    cache = line(cache_a, cache_b, longest) if longest else 0
    return {
        "l_m": longest,
        "limit": longest_length(lambda length: weights + line(cache_a, cache_b, length) <= memory_bytes),
        "weight_bytes": weights,
        "cache_bytes": cache,
        "activation_bytes": line(peak_a, peak_b, longest) - cache if longest else 0,
    }


def converted_twin(
    model: PreTrainedModel, beta: float, seed: int = 0, mamba: dict[str, Any] | None = None
) -> PreTrainedModel:
    """The model with a fraction beta of its heads replaced, on the meta device; of `model` only shape and dtype matter.

    Whole query groups are replaced, in a random order: the remaining size depends on the number in each layer only.
    `mamba` has d_state, d_conv, expand, dt_rank for `convert`; its defaults when absent.

    Raises:
        ValueError: beta outside [0, 1].
    """
    base = meta_twin(model)
    config = base.config
    ranking = random_ranking(config.num_hidden_layers, config.num_attention_heads, seed)
    heads = rank_heads(ranking, config.num_key_value_heads, beta, sliding=sliding_layers(config))
    return convert(base, heads, "mamba", **(mamba or {}))


def memory_row(
    converted: PreTrainedModel, name: str, beta: float, protocol: str, memory_bytes: int, chunk: int
) -> dict[str, Any]:
    """One row of memory.csv: the longest input of a converted model, see `measure_memory`."""
    of_mamba = [parameter for name, parameter in converted.named_parameters() if ".mamba." in name]
    return {
        "model": name,
        "beta": beta,
        "protocol": protocol,
        "parameters": converted.num_parameters(),
        "mamba_parameters": sum(parameter.numel() for parameter in of_mamba),
        **longest_input(converted, memory_bytes, protocol, chunk),
        "memory_bytes": memory_bytes,
        "source": "model",
    }


def measure_memory(
    model: PreTrainedModel,
    name: str,
    betas: Sequence[float],
    memory_gib: float,
    chunk: int,
    seed: int = 0,
    mamba: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Compute the longest input of one shape at every beta: the rows of memory.csv.

    Args:
        model: the unconverted model; only its shape and dtype matter.
        name: written to the column `model`.
        betas: fractions of heads to replace, see `converted_twin`.
        memory_gib: memory of the GPU in GiB.
        chunk: tokens of a chunk in the chunked protocol.
        seed: of the random order of heads.
        mamba: d_state, d_conv, expand, dt_rank for `convert`; its defaults when absent.
        progress: called with (betas done, betas).

    Returns:
        model, beta, protocol, parameters (of the whole model at this beta, shared ones once), mamba_parameters (those
        of the Mamba blocks among them; 0 at beta 0), the columns of `longest_input`, memory_bytes, source ("model").

    Raises:
        ValueError: beta outside [0, 1].
    """
    rows = []
    for done, beta in enumerate(betas, start=1):
        converted = converted_twin(model, beta, seed, mamba)
        rows += [memory_row(converted, name, beta, protocol, int(memory_gib * GIB), chunk) for protocol in PROTOCOLS]
        if progress is not None:
            progress(done, len(betas))
    return pd.DataFrame(rows)
