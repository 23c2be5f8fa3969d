"""The longest input that fits into a card's memory, computed: l_m of Tables 2 and 4, marked as a model.

    memory = weights + cache + activations

Weights are the model's parameters and buffers. The rest is the peak of the tensors that the model's own code holds
during a forward pass on the meta device (`PeakMemory`), with the logits of the last token only. The attention kernel
alone is replaced, by what PyTorch's fused CUDA kernels allocate: the output, one float32 per query and head, and
under an explicit mask the repeated keys and values and the mask as a bias. What stays out: the CUDA context, the
allocator's rounding and fragmentation, and the kernels' inner workspace. Real cards therefore hold somewhat less.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import sdpa_mask

from recurformer.heads.select import random_ranking, rank_heads
from recurformer.measure.cache import cache_bytes, cache_tensors, meta_twin
from recurformer.measure.parameters import count_parameters
from recurformer.measure.peak import PeakMemory
from recurformer.model.convert import convert

IMPLEMENTATION = "recurformer_fused_shapes"
GIB = 2**30
PROBES = (16_384, 32_768)  # the peak is affine between and beyond: both are far above all constant terms


def _fused_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Allocate what a fused attention kernel allocates, on the meta device, and compute nothing."""
    batch, heads, length, _ = query.shape
    held = []
    if attention_mask is not None:  # no grouped-query kernel under a mask
        groups = heads // key.shape[1]
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        held.append(attention_mask.to(query.dtype))  # the kernel takes an additive bias
    held.append(query.new_empty(batch, heads, length, dtype=torch.float32))  # log-sum-exp of every row
    return query.new_empty(batch, length, heads, value.shape[-1]), None


AttentionInterface.register(IMPLEMENTATION, _fused_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers, shared ones once."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _forward(model: PreTrainedModel, tokens: int, cache: DynamicCache) -> None:
    input_ids = torch.empty(1, tokens, dtype=torch.long, device="meta")
    model(input_ids=input_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)


def peak_one_shot(model: PreTrainedModel, length: int, chunk: int) -> tuple[int, int]:
    """(peak of cache and activations, cache afterwards) in bytes when the whole prompt is one forward pass."""
    cache = DynamicCache(config=model.config)
    with PeakMemory() as memory:
        _forward(model, length, cache)
    return memory.peak, int(cache_bytes(cache).bytes.sum())


def peak_chunked(model: PreTrainedModel, length: int, chunk: int) -> tuple[int, int]:
    """The same for the last of the chunks of `chunk` tokens, which has the largest peak."""
    if length <= chunk:
        return peak_one_shot(model, length, chunk)
    cache = DynamicCache(config=model.config)
    _forward(model, length - chunk, cache)
    with PeakMemory(include=[tensor for *_, tensor in cache_tensors(cache)]) as memory:
        _forward(model, chunk, cache)
    return memory.peak, int(cache_bytes(cache).bytes.sum())


# name -> f(model on the meta device, prompt tokens, tokens of a chunk) -> (peak bytes, cache bytes)
PROTOCOLS: dict[str, Callable[[PreTrainedModel, int, int], tuple[int, int]]] = {
    "one_shot": peak_one_shot,
    "chunked": peak_chunked,
}


def longest_length(fits: Callable[[int], bool], maximum: int = 2**40) -> int:
    """The largest n in 0 .. maximum with fits(n), by bisection; `fits` must not become true again once it is false."""
    low, high = 0, 1
    while high <= maximum and fits(high):
        low, high = high, 2 * high
    high = min(high, maximum + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@torch.no_grad()
def longest_input(
    model: PreTrainedModel, memory_bytes: int, protocol: str = "one_shot", chunk: int = 1024
) -> dict[str, int]:
    """Compute the longest prompt of one model, batch 1.

    The peak is measured at the two lengths `PROBES` and extended as a straight line, which it is up to rounding to
    whole scan blocks; the longest length is found by bisection.

    Args:
        model: causal language model, converted or not; class, config and dtype matter, weights do not.
        memory_bytes: the card's memory.
        protocol: a name in `PROTOCOLS`.
        chunk: tokens of a chunk in the chunked protocol.

    Returns:
        l_m (0 when not even one token fits), and at this length weight_bytes, cache_bytes, activation_bytes (bytes).

    Raises:
        ValueError: an unknown protocol, or chunk below 1.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol={protocol!r} is unknown; choose one of {', '.join(PROTOCOLS)}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1 token, got {chunk}")
    twin = meta_twin(model)
    implementation = twin.config._attn_implementation
    twin.set_attn_implementation(IMPLEMENTATION)
    try:
        (peak_a, cache_a), (peak_b, cache_b) = (PROTOCOLS[protocol](twin, length, chunk) for length in PROBES)
    finally:
        twin.set_attn_implementation(implementation)

    def line(value_a: int, value_b: int, length: int) -> int:
        return value_a + (value_b - value_a) * (length - PROBES[0]) // (PROBES[1] - PROBES[0])

    weights = weight_bytes(twin)
    longest = longest_length(lambda length: weights + line(peak_a, peak_b, length) <= memory_bytes)
    cache = line(cache_a, cache_b, longest) if longest else 0
    return {
        "l_m": longest,
        "weight_bytes": weights,
        "cache_bytes": cache,
        "activation_bytes": line(peak_a, peak_b, longest) - cache if longest else 0,
    }


def measure_memory(
    model: PreTrainedModel,
    name: str,
    betas: Sequence[float],
    memory_gib: float = 80.0,
    protocols: Sequence[str] = tuple(PROTOCOLS),
    chunk: int = 1024,
    seed: int = 0,
    mamba: dict[str, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Compute the longest input of one shape at every beta: the rows of memory.csv.

    Whole query groups are replaced, in a random order: the size of what remains depends on the number in each layer
    only.

    Args:
        model: the unconverted model; only its shape and dtype matter.
        name: written to the column `model`.
        betas: shares of heads to replace.
        memory_gib: memory of the card in GiB.
        protocols: names in `PROTOCOLS`.
        chunk: tokens of a chunk in the chunked protocol.
        seed: of the random order.
        mamba: d_state, d_conv, expand, dt_rank for `convert`; its defaults when absent.
        progress: called with (betas done, betas).

    Returns:
        model, beta, protocol, parameters (of the whole model at this beta, shared ones once), mamba_parameters (those
        of the Mamba blocks among them; 0 at beta 0), l_m (tokens), weight_bytes, cache_bytes, activation_bytes,
        memory_bytes, source ("model").

    Raises:
        ValueError: beta outside [0, 1], an unknown protocol, or a parameter of no kind that `count_parameters` knows.
    """
    base = meta_twin(model)
    config = base.config
    ranking = random_ranking(config.num_hidden_layers, config.num_attention_heads, seed)
    memory_bytes = int(memory_gib * GIB)
    rows = []
    for done, beta in enumerate(betas, start=1):
        heads = rank_heads(ranking, config.num_key_value_heads, beta)
        converted = convert(base, heads, "mamba", **(mamba or {}))
        counts = count_parameters(converted).set_index("kind").parameters
        for protocol in protocols:
            result = longest_input(converted, memory_bytes, protocol, chunk)
            rows.append(
                {
                    "model": name,
                    "beta": beta,
                    "protocol": protocol,
                    "parameters": int(counts.sum()),
                    "mamba_parameters": int(counts["mamba"]),
                    **result,
                    "memory_bytes": memory_bytes,
                    "source": "model",
                }
            )
        if progress is not None:
            progress(done, len(betas))
    return pd.DataFrame(rows)
