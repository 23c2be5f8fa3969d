"""Cache size and cache peak of full-size models on a device: bytes of real cache objects, and the allocator's peak.

Weights are random, for no byte depends on them. The same caches are counted on the meta device as a cross-check.
"""

import gc
from collections.abc import Callable, Sequence
from typing import Any, Final

import pandas as pd
import torch
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel

from recurformer.backbones import meta_model, random_model
from recurformer.heads.select import random_ranking, rank_heads
from recurformer.measure.cache import cache_bytes, count_cache
from recurformer.measure.limit import is_out_of_memory
from recurformer.measure.peak import AllocatorPeak, PeakMemory
from recurformer.model.convert import convert
from recurformer.model.layout import sliding_layers

UNIT: Final = "kv_group"
DTYPE = torch.bfloat16


@torch.no_grad()
def _prefill(model: PreTrainedModel, length: int) -> tuple[int, int] | None:
    """Bytes of the cache after a prompt that is read in one forward pass, and the peak of the pass beyond the weights;
    None when the device has not as much memory.
    """
    input_ids: Any = torch.zeros(1, length, dtype=torch.long, device=model.device)
    cache = DynamicCache(config=model.config)
    memory: AllocatorPeak | PeakMemory = AllocatorPeak() if model.device.type == "cuda" else PeakMemory()
    try:
        with memory:
            model(input_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    return int(cache_bytes(cache).bytes.sum()), memory.peak


def _limit(device: str, memory_gib: float) -> str:
    """Let this process have no more of a card's memory than another card has; the device's name."""
    if device != "cuda":
        return device
    card = torch.cuda.get_device_properties(0)
    torch.cuda.set_per_process_memory_fraction(min(1.0, memory_gib * 2**30 / card.total_memory))
    return card.name


def measure_cache_peak(
    config: PreTrainedConfig,
    name: str,
    betas: Sequence[float],
    lengths: Sequence[int],
    *,
    device: str,
    memory_gib: float,
    seed: int = 0,
    mamba: dict[str, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Prefill each length with a model of one shape, batch 1 and bfloat16, at every beta: the rows of cache_peak.csv.

    Args:
        config: of the unconverted model.
        name: written to the column `model`.
        betas: shares of heads to replace, 0 among them or not: the original is always measured.
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
    device_name, shares = _limit(device, memory_gib), sorted({0.0, *betas})
    ranking = random_ranking(config.num_hidden_layers, config.num_attention_heads, seed)
    shape = meta_model(config, DTYPE)
    rows: list[dict[str, Any]] = []
    for done, beta in enumerate(shares, start=1):
        heads = rank_heads(ranking, config.num_key_value_heads, beta, UNIT, sliding=sliding_layers(config))
        counted = convert(shape, heads, "mamba", **(mamba or {}))
        model = convert(random_model(config, seed, DTYPE, device), heads, "mamba", **(mamba or {}))
        for length in lengths:
            total, peak = _prefill(model, length) or (None, None)
            rows.append(
                {
                    "model": name, "unit": UNIT, "beta": beta, "length": length, "total_bytes": total,
                    "counted_bytes": int(count_cache(counted, length).bytes.sum()), "peak_bytes": peak,
                    "memory_gib": memory_gib, "device": device_name,
                }
            )  # fmt: skip
        del model  # two models of 7B and a long cache do not fit together
        gc.collect()
        if progress is not None:
            progress(done, len(shares))
    frame = pd.DataFrame(rows).astype({"total_bytes": "Int64", "peak_bytes": "Int64"})
    original_bytes = frame[frame.beta == 0].set_index("length").total_bytes
    frame.insert(6, "ratio", (frame.total_bytes / frame.length.map(original_bytes)).astype("Float64"))
    return frame
