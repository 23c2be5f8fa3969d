"""Attention that also returns the logarithm of each query's softmax denominator.

torch's fused kernels compute it, and torch's public function drops it: this module calls the kernels by their names.
"""

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention


def _fits_flash(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> bool:
    return can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, causal, True))


def refuses(query: Tensor, key: Tensor, value: Tensor, causal: bool = True) -> str | None:
    """Return why no fused kernel of this device takes such tensors, or None; arguments as of `flash_attention`."""
    device = query.device.type
    if device in ("cpu", "meta"):
        return None
    if device == "cuda" and query.shape[-1] % 8 == 0:  # torch's public function pads other heads
        if _fits_flash(query, key, value, causal):
            return None
        one_for_all = (x[:, :1].expand(-1, query.shape[1], -1, -1) for x in (key, value))  # only their form counts
        if can_use_efficient_attention(SDPAParams(query, *one_for_all, None, 0.0, causal, False)):
            return None
    return f"no fused attention for {query.dtype} heads of {query.shape[-1]} numbers on {query.device}"


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool = True
) -> tuple[Tensor, Tensor]:
    """Attention without a mask, in one pass.

    Args:
        query: (B, H, L, D).
        key: (B, key-value heads, keys, D); as many keys as queries where it is causal.
        value: likewise.
        scaling: factor of the scores before the softmax.
        causal: whether a query sees the keys up to its own position only.

    Returns:
        output (B, H, L, D) and logsumexp (B, H, L): of each query's scaled scores, in float32 or better.

    Raises:
        ValueError: no kernel takes such tensors; see `refuses`.
    """
    reason = refuses(query, key, value, causal)
    if reason is not None:
        raise ValueError(reason)
    if query.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(query, key, value, 0.0, causal, scale=scaling)
    fits = query.is_meta or _fits_flash(query, key, value, causal)  # on meta shapes and memory are as on a GPU
    return (flash_kernel if fits else efficient_kernel)(query, key, value, scaling, causal)


def flash_kernel(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor]:
    """FlashAttention on a GPU; see `flash_attention`."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    output, logsumexp, *_ = kernel(query, key, value, 0.0, causal, scale=scaling)
    return output, logsumexp


def efficient_kernel(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Memory-efficient attention on a GPU, which takes float32 too; see `flash_attention`."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    output, logsumexp, *_ = kernel(query, key, value, None, True, 0.0, causal, scale=scaling)
    return output, logsumexp[..., : query.shape[2]]  # its rows are rounded up
