"""Cache sizes, counted from the cache objects that a model really makes (columns cs_10k and cs_60k of Tables 2 and 4).

Nothing here is a formula of sizes, except PyramidInfer's, which the paper's numbers identify. A model on the meta
device runs its own forward pass over the full length; that moves shapes only, so it is exact and takes seconds at 7B
and 61,440 tokens.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel

from recurformer.heads.profile import HeadProfile
from recurformer.heads.select import Scope, random_ranking, rank_heads, select_heads
from recurformer.model.convert import convert
from recurformer.model.layout import sliding_layers

KINDS = ("key", "value", "conv_state", "recurrent_state")
COLUMNS = ["layer", "kind", "dtype", "bytes"]


def cache_tensors(cache: Cache) -> Iterator[tuple[int, str, Tensor]]:
    """Yield (layer, kind, tensor) for all tensors of a transformers cache."""
    for index, layer in enumerate(cache.layers):
        if hasattr(layer, "held_tensors"):  # a layer that names its tokens' tensors itself
            yield from ((index, kind, tensor) for kind, tensor in layer.held_tensors())
        for kind, name in (("key", "keys"), ("value", "values")):
            if (tensor := getattr(layer, name, None)) is not None:
                yield index, kind, tensor
        for kind in ("conv_state", "recurrent_state"):
            for tensor in (getattr(layer, f"{kind}s", None) or {}).values():
                if tensor is not None:
                    yield index, kind, tensor


def cache_bytes(cache: Cache) -> pd.DataFrame:
    """Count the bytes of each layer of a transformers cache.

    Returns:
        One row per tensor: layer, kind ("key", "value", "conv_state", "recurrent_state" or the layer's own name of
        it), dtype, bytes.
    """
    rows = [
        (layer, kind, str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size())
        for layer, kind, tensor in cache_tensors(cache)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def meta_twin(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model of the same class, config and dtype on the meta device; the model itself if it is there."""
    if model.device.type == "meta":
        return model
    with torch.device("meta"):
        twin = type(model)._from_config(
            copy.deepcopy(model.config), dtype=model.dtype, attn_implementation=model.config._attn_implementation
        )
    return twin.eval()


@torch.no_grad()
def count_cache(model: PreTrainedModel, length: int) -> pd.DataFrame:
    """Count the cache after a forward pass over `length` tokens of one sequence, on the meta device.

    Args:
        model: a causal language model, converted or not, on any device; only its class, config and dtype matter.
        length: tokens in the cache.

    Returns:
        The frame of `cache_bytes`.
    """
    twin = meta_twin(model)
    cache = DynamicCache(config=twin.config)
    twin.base_model(torch.empty(1, length, dtype=torch.long, device="meta"), past_key_values=cache, use_cache=True)
    return cache_bytes(cache)


def freed_kv_heads(heads: Sequence[Sequence[int]], attention_heads: int, kv_heads: int) -> int:
    """Count the key-value heads all of whose query heads are replaced."""
    size = attention_heads // kv_heads
    return sum(
        set(range(group * size, (group + 1) * size)) <= set(replaced) for replaced in heads for group in range(kv_heads)
    )


def _summary(frame: pd.DataFrame) -> dict[str, Any]:
    sums = frame.groupby("kind").bytes.sum().reindex(KINDS, fill_value=0)
    states = (
        frame[frame.kind.isin(["conv_state", "recurrent_state"])].drop_duplicates("kind").set_index("kind")["dtype"]
    )
    return {
        "kv_bytes": int(sums["key"] + sums["value"]),
        "conv_bytes": int(sums["conv_state"]),
        "recurrent_bytes": int(sums["recurrent_state"]),
        "total_bytes": int(sums.sum()),
        "state_dtype": " ".join(f"{str(kind).removesuffix('_state')}:{dtype}" for kind, dtype in states.items()),
    }


def measure_cache(
    model: PreTrainedModel,
    name: str,
    betas: Sequence[float],
    lengths: Sequence[int] = (10_240, 61_440),
    units: Sequence[Any] = ("kv_group", "head"),
    profile: HeadProfile | None = None,
    scope: Scope = "global",
    by: str = "ra_i",
    seed: int = 0,
    mamba: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Convert one shape at every beta and count its caches: the rows of cache.csv.

    Args:
        model: the unconverted model; only its shape and dtype matter.
        name: written to the column `model`.
        betas: fractions of heads to replace.
        lengths: tokens in the cache.
        units: selection units to compare.
        profile: ranks the heads to replace. Without one (no weights) the ranking is random; that changes the
            counts under unit "head" with grouped-query attention only.
        scope: see `select_heads`.
        by: ranking used with `profile`.
        seed: of a random ranking.
        mamba: d_state, d_conv, expand, dt_rank for `convert`; its defaults when absent.
        progress: called with (conversions done, conversions).

    Returns:
        model, unit, beta, length, kv_bytes, conv_bytes, recurrent_bytes, total_bytes, state_dtype (such as
        "conv:bfloat16 recurrent:float32"), ratio (total over the unconverted model's total at the same length),
        heads_replaced, kv_heads_freed, ranking ("profile" or "random").

    Raises:
        ValueError: beta outside [0, 1], an unknown unit or ranking, or a profile of another shape.
    """
    base = meta_twin(model)
    config = base.config
    layers, heads, kv_heads = config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads
    if profile is not None and profile.shape != (layers, heads):
        raise ValueError(f"profile is of {profile.shape} layers and heads, model {name} has {(layers, heads)}")
    original_bytes = {length: _summary(count_cache(base, length))["total_bytes"] for length in lengths}
    counted: dict[str, list[dict[str, Any]]] = {}  # units often choose the same heads: count them once
    rows = []
    for done, (unit, beta) in enumerate([(unit, beta) for unit in units for beta in betas], start=1):
        if profile is None:
            ranking = random_ranking(layers, heads, seed)
            chosen = rank_heads(ranking, kv_heads, beta, unit, scope, sliding_layers(config))
        else:
            chosen = select_heads(profile, beta, unit, scope, by, seed)
        if str(chosen) not in counted:
            converted = convert(base, chosen, "mamba", **(mamba or {}))
            counted[str(chosen)] = [_summary(count_cache(converted, length)) for length in lengths]
        freed, ranked_by = freed_kv_heads(chosen, heads, kv_heads), "random" if profile is None else "profile"
        choice = {"heads_replaced": sum(map(len, chosen)), "kv_heads_freed": freed, "ranking": ranked_by}
        for length, counts in zip(lengths, counted[str(chosen)], strict=True):
            place = {"model": name, "unit": unit, "beta": beta, "length": length}
            rows.append(place | counts | {"ratio": counts["total_bytes"] / original_bytes[length]} | choice)
        if progress is not None:
            progress(done, len(units) * len(betas))
    return pd.DataFrame(rows)


def held_bytes(cache: Cache, tokens: int, dtype: torch.dtype) -> float:
    """Bytes of the cache for each of the `tokens` (of all sequences together) that it has seen.

    Packed numbers stand beside numbers of 16 bits. In a model of a wider `dtype`, as measured on a processor, they
    count as many times more.
    """
    rows = cache_bytes(cache)
    packed = rows.dtype == "uint8"
    return float(rows.bytes.sum() + rows.bytes[packed].sum() * (dtype.itemsize / 2 - 1)) / tokens


def full_bytes(original: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Bytes that a full cache of the original model holds for each token, layers with a sliding window included."""
    size = getattr(original, "head_dim", None) or original.hidden_size // original.num_attention_heads
    return original.num_hidden_layers * 2 * original.num_key_value_heads * size * dtype.itemsize


def held_ratio(bytes_per_token: Sequence[float], original: PreTrainedConfig, dtype: torch.dtype) -> float:
    """Mean of `held_bytes` over the bytes of the original's full cache.

    Args:
        bytes_per_token: one value a batch.
        original: of the model before anything was changed.
        dtype: of the measured model, so that keeping the same weights in fewer bits does not count as a smaller cache.
    """
    return sum(bytes_per_token) / len(bytes_per_token) / full_bytes(original, dtype)
