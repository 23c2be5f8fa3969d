"""A stock attention layer of any family: how queries, keys and values come out of it, and how they are rotated."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, rotate_half

FUSED = "qkv_proj"
"""The projection that gives queries, keys and values side by side, where a family has it (Phi-3)."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj", FUSED, "o_proj")
NORMS = ("q_norm", "k_norm")
"""Of the features of each head, shared by all heads (Qwen3, Gemma 3)."""


def check_stock(attention: Any, index: int) -> None:
    """Refuse a stock attention module that has more than is known here, for it would be lost in a conversion.

    Raises:
        ValueError: a projection is no ordinary linear layer, a norm covers more than one head, or there is a part that
            is not known.
    """
    for name, module in attention.named_children():
        if name in PROJECTIONS:
            if type(module) is not nn.Linear:
                raise ValueError(
                    f"{name} of layer {index} is a {type(module).__name__}, not an ordinary linear layer: load the"
                    " model without quantization before converting"
                )
        elif name not in NORMS:
            raise ValueError(f"{name} of layer {index}, a {type(module).__name__}, cannot be split by heads")
        elif module.weight.shape != (attention.head_dim,):
            raise ValueError(
                f"{name} of layer {index} normalises {module.weight.numel()} features, not the {attention.head_dim} of"
                " a head: no head can be taken out alone"
            )
    for name, _ in attention.named_parameters(recurse=False):
        raise ValueError(f"{name} of layer {index} cannot be split by heads")


def has_bias(attention: Any) -> bool:
    """Return whether queries, keys and values have biases."""
    projection = attention.qkv_proj if hasattr(attention, FUSED) else attention.q_proj
    return projection.bias is not None


def rotates(attention: Any) -> bool:
    """Return whether the layer knows positions; some of SmolLM3's do not."""
    return bool(getattr(attention, "use_rope", True))


def split_fused(state: dict[str, Tensor], prefix: str, sizes: Sequence[int]) -> None:
    """Replace a fused projection of a state dict by three, in place.

    Args:
        state: of a whole model.
        prefix: of one attention module's names.
        sizes: rows of queries, keys and values.
    """
    for part in ("weight", "bias"):
        fused = state.pop(f"{prefix}{FUSED}.{part}", None)
        if fused is not None:
            rows = zip(PROJECTIONS, fused.split(list(sizes)), strict=False)
            state.update({f"{prefix}{name}.{part}": tensor for name, tensor in rows})


def queries_and_keys(
    attention: Any, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return rotated queries (B, H, L, head_dim) and keys (B, KV heads, L, head_dim) of a stock layer."""
    if hasattr(attention, FUSED):
        config, dim = attention.config, attention.head_dim
        sizes = (config.num_attention_heads * dim, config.num_key_value_heads * dim)
        rows = attention.qkv_proj(hidden_states)[..., : sum(sizes)].split(sizes, -1)
    else:
        rows = attention.q_proj(hidden_states), attention.k_proj(hidden_states)
    queries, keys = (x.unflatten(-1, (-1, attention.head_dim)) for x in rows)
    if hasattr(attention, "q_norm"):
        queries, keys = attention.q_norm(queries), attention.k_norm(keys)
    return rotate(queries.transpose(1, 2), keys.transpose(1, 2), position_embeddings if rotates(attention) else None)


def rotate(queries: Tensor, keys: Tensor, position_embeddings: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Return queries and keys (B, heads, L, head_dim) as a layer compares them.

    Args:
        queries: not rotated.
        keys: likewise.
        position_embeddings: cosines and sines (B, L, rotated features), which may be fewer than a head has; None for
            a layer without positions.
    """
    if position_embeddings is None:
        return queries, keys
    cos, sin = position_embeddings
    turned = cos.shape[-1]
    if turned == queries.shape[-1]:
        return apply_rotary_pos_emb(queries, keys, cos, sin)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)

    def part(x: Tensor) -> Tensor:
        first, rest = x[..., :turned], x[..., turned:]
        return torch.cat([first * cos + rotate_half(first) * sin, rest], -1)

    return part(queries), part(keys)
