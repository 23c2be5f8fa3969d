"""Growth of cache peak and cache size with the length: the measurements of Table 1.

One attention layer (eager, whose O(l^2) the paper's table counts) and one Mamba block stand in one small model on the
meta device: real code, real cache objects, exact byte counts, no arithmetic.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from transformers import Cache, DynamicCache, LlamaConfig, LlamaForCausalLM

from recurformer.measure.cache import cache_bytes, cache_tensors
from recurformer.measure.device import PeakMemory
from recurformer.model.convert import convert
from recurformer.paper import LLAMA2_7B_WIDTH

MIXERS = ("attention", "mamba")  # layer 0 and layer 1 of the measured model
WIDTH, HEADS = LLAMA2_7B_WIDTH, 32  # its dimension d; its attention heads, and those that the Mamba block replaces


def _two_mixers(mamba: dict[str, Any]) -> nn.Module:
    """A model on the meta device whose layer 0 attends and whose layer 1 is one Mamba block over as many heads."""
    config = LlamaConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        intermediate_size=WIDTH,
        vocab_size=8,
    )
    with torch.device("meta"):
        base = LlamaForCausalLM(config).eval()
    model = convert(base, [[], list(range(HEADS))], "mamba", **mamba)
    model.set_attn_implementation("eager")
    return model


def _record(module: nn.Module, cache: Callable[[], Cache], layer: int, results: dict[str, tuple[int, int]]) -> None:
    """Make `module` write the peak of its forward pass, its cache included, and its operations to `results`."""
    forward = module.forward

    def measured(*args: Any, **kwargs: Any) -> Any:
        cached = [tensor for index, _, tensor in cache_tensors(cache()) if index == layer]
        with PeakMemory(include=cached) as memory, Operations() as operations:
            del cached
            result = forward(*args, **kwargs)
        results[MIXERS[layer]] = memory.peak, operations.total
        return result

    module.forward = measured  # type: ignore[method-assign]


@torch.no_grad()
def measure_complexity(lengths: Sequence[int], mamba: dict[str, Any] | None = None) -> pd.DataFrame:
    """Measure prefill over each length, and one generation step after as many tokens: the rows of complexity.csv.

    "cache_peak" is the largest sum of bytes that the mixer's code held at once during the phase: its cache and every
    other tensor that it made, scores and projections included. "cache_size" is the size of its cache afterwards. Both
    rows of a phase have its operations (`recurformer.measure.growth`).

    Args:
        lengths: tokens in the prompt, in the generation phase: tokens already in the cache. Some must be far above
            `WIDTH`, else the l * d terms of Table 1 hide the l^2 term.
        mamba: d_state, d_conv, expand, dt_rank for `convert`; its defaults when absent.

    Returns:
        mixer ("attention", "mamba"), phase ("prefill", "generation"), quantity ("cache_peak", "cache_size"), length,
        bytes, operations, width (`WIDTH`).
    """
    model: Any = _two_mixers(mamba or {})
    results: dict[str, tuple[int, int]] = {}
    cache = DynamicCache(config=model.config)
    attention, block = model.base_model.layers[0].self_attn, model.base_model.layers[1].self_attn.mamba
    for layer, module in enumerate((attention, block)):
        _record(module, lambda: cache, layer, results)
    rows = []
    for length in lengths:
        cache = DynamicCache(config=model.config)
        for phase, tokens in (("prefill", length), ("generation", 1)):
            input_ids = torch.empty(1, tokens, dtype=torch.long, device="meta")
            model.base_model(input_ids, past_key_values=cache, use_cache=True)
            sizes = cache_bytes(cache).groupby("layer").bytes.sum()
            for layer, mixer in enumerate(MIXERS):
                peak, operations = results[mixer]
                rows.append((mixer, phase, "cache_peak", length, peak, operations))
                rows.append((mixer, phase, "cache_size", length, int(sizes[layer]), operations))
    columns = ["mixer", "phase", "quantity", "length", "bytes", "operations"]
    return pd.DataFrame(rows, columns=columns).assign(width=WIDTH)


class Operations(TorchDispatchMode):
    """Count additions and multiplications of matrix products and convolutions, and one operation for each number that
    any other operator makes. Views make no numbers.

        with Operations() as operations:
            model(input_ids)
        operations.total

    torch's own counter leaves out all but the products: a recurrence would cost nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func._overloadpacket in flop_registry:
            self.total += flop_registry[func._overloadpacket](*args, **kwargs, out_val=result)
        elif not func.is_view:
            self.total += sum(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result
