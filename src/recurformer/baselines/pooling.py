"""Fewer key-value heads by mean pooling (Ainslie et al., arXiv 2305.13245): from MHA or GQA to GQA or MQA.

Training afterwards ("uptraining") is the caller's.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.model.config import MODEL_TYPE_PREFIX

PROJECTIONS = (".self_attn.k_proj.", ".self_attn.v_proj.")


def pool_rows(rows: Tensor, query_heads: int, kv_heads: int, pooled: int) -> Tensor:
    """Return a key or value projection's rows (or bias) for `pooled` KV heads instead of `kv_heads`.

    A new head is the mean over its query heads of the old heads that they read: where groups do not nest, an old head
    counts by how many of the query heads read it. Half precision is averaged in float32.
    """
    per_query = rows.unflatten(0, (kv_heads, -1)).repeat_interleave(query_heads // kv_heads, 0)
    wide = per_query.unflatten(0, (pooled, -1)).to(torch.promote_types(rows.dtype, torch.float32))
    return wide.mean(1).flatten(0, 1).to(rows.dtype)


def pool_kv_heads(model: PreTrainedModel, kv_heads: int) -> PreTrainedModel:
    """Return a new stock model of the same class with `kv_heads` key-value heads, each the mean of old ones.

    The given model is left as it is. Query heads keep their order: new head j serves the j-th run of neighbours.

    Args:
        model: a stock causal language model with `k_proj` and `v_proj`, such as Llama or Qwen3.
        kv_heads: of the new model; divides the query heads; at most the model's number.

    Raises:
        ValueError: such a number of heads cannot be, or the model is a converted one or has no such projections.
    """
    config: Any = deepcopy(model.config)
    query_heads, old = config.num_attention_heads, config.num_key_value_heads
    if config.model_type.startswith(MODEL_TYPE_PREFIX):
        raise ValueError(f"the model is a converted one ({config.model_type}): pool the heads of its original")
    if not 1 <= kv_heads <= old or query_heads % kv_heads:
        fitting = ", ".join(str(n) for n in range(1, old + 1) if query_heads % n == 0)
        raise ValueError(f"kv_heads={kv_heads} cannot serve {query_heads} query heads; possible are {fitting}")
    config.num_key_value_heads = kv_heads
    before = model.state_dict()
    if not any(PROJECTIONS[0] in name for name in before):
        raise ValueError(f"a {config.model_type} model has no k_proj and v_proj of its own: its heads cannot be pooled")
    state = {
        name: pool_rows(tensor, query_heads, old, kv_heads) if any(part in name for part in PROJECTIONS) else tensor
        for name, tensor in before.items()
    }
    pooled = type(model)._from_config(config, dtype=model.dtype, attn_implementation=model.config._attn_implementation)
    pooled.load_state_dict(state)
    pooled.generation_config = deepcopy(model.generation_config)
    return pooled.to(model.device).train(model.training)
