"""Attention that also returns the logarithm of each query's softmax denominator.

torch's fused kernels compute it, and torch's public function drops it: this module calls the kernels by their names.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention

Kernel = Callable[[Tensor, Tensor, Tensor, float, bool], tuple[Tensor, Tensor] | None]


def _cpu(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor] | None:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(query, key, value, 0.0, causal, scale=scaling)


def _flash(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor]:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    output, logsumexp, *_ = kernel(query, key, value, 0.0, causal, scale=scaling)
    return output, logsumexp


def _cuda(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor] | None:
    if query.shape[-1] % 8:
        return None  # torch's public function pads such heads
    if can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, causal, True)):
        return _flash(query, key, value, scaling, causal)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if not can_use_efficient_attention(SDPAParams(query, key, value, None, 0.0, causal, False)):
        return None
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    output, logsumexp, *_ = kernel(query, key, value, None, True, 0.0, causal, scale=scaling)
    return output, logsumexp[..., : query.shape[2]]  # its rows are rounded up


KERNELS: dict[str, Kernel] = {
    "cpu": _cpu,
    "cuda": _cuda,
    "meta": _flash,  # shapes and memory as on a card
}


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool = True
) -> tuple[Tensor, Tensor] | None:
    """Attention without a mask, in one pass.

    Args:
        query: (B, H, L, D).
        key: (B, key-value heads, keys, D); as many keys as queries where it is causal.
        value: likewise.
        scaling: factor of the scores before the softmax.
        causal: whether a query sees the keys up to its own position only.

    Returns:
        output (B, H, L, D) and logsumexp (B, H, L): of each query's scaled scores, in float32 or better. None when no
        kernel of this device takes such tensors.
    """
    kernel = KERNELS.get(query.device.type)
    return None if kernel is None else kernel(query, key, value, scaling, causal)
