"""Keys and values of 4 to 8 bits: whole numbers and one scale for each token, so that a window may drop any token.

A few features of a key are much larger than the others, so one scale for all features would waste most of its steps.
Two changes that attention does not see even them out. The mean key, which a softmax over keys ignores, is taken away.
Keys, queries and values are turned by Hadamard's orthogonal matrix (QuaRot, arXiv 2404.00456), outputs turned back.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from . import cpp_step
from .mixer import own_precision

FULL_BITS = 16
"""Bits of numbers that stay as the model computes them, whatever its type."""
BITS = (FULL_BITS, 8, 6, 5, 4)
"""Bits that a cache may give to each number."""
SCALE = torch.bfloat16  # has the range of float32: no key is too large


def packed_bytes(head_dim: int, bits: int) -> int:
    """Return the bytes of one token's key or value."""
    return -(-head_dim * bits // 8) + (0 if bits == FULL_BITS else SCALE.itemsize)


def hadamard(x: Tensor) -> Tensor:
    """Return x (..., D) times Hadamard's orthonormal matrix, by blocks of the largest power of two that divides D.

    The product with the result gives x back. The sums are of float32 at least: half precision would lose as much as 8
    bits do.
    """
    if cpp_step.takes((x,), ()):
        return cpp_step.hadamard(x)
    width = x.shape[-1] & -x.shape[-1]
    index = torch.arange(width, device=x.device)
    odd = index.unsqueeze(1) & index  # an entry is negative where its row and column share an odd number of bits
    for shift in (16, 8, 4, 2, 1):
        odd = odd ^ (odd >> shift)
    wide = _wide(x)
    with own_precision(x):
        matrix = (1 - 2 * (odd & 1)).to(wide.dtype) * width**-0.5
        return (wide.unflatten(-1, (-1, width)) @ matrix).flatten(-2)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def pack(x: Tensor, bits: int) -> Tensor:
    """Return x (..., D) as whole numbers of `bits` bits and their scale, (..., packed_bytes(D, bits)) uint8.

    The scale is the width of a step; the steps divide the range from minus to plus the greatest size evenly.
    """
    steps = 2**bits
    wide = _wide(x)
    scale = (wide.abs().amax(-1, keepdim=True) * (2 / steps)).to(SCALE)
    width = scale.to(wide.dtype).clamp(min=torch.finfo(SCALE).tiny)
    numbers = (wide / width + steps / 2).floor().clamp(0, steps - 1).to(torch.uint8)
    numbers = _joined(numbers, bits) if bits < 8 else numbers
    return torch.cat([numbers, scale.view(torch.uint8)], -1)


def _joined(numbers: Tensor, bits: int) -> Tensor:
    """Return numbers (..., D) of 4, 5 or 6 bits in few bytes: the lowest 4 bits in pairs, then those above, in turn."""
    even, odd = numbers.unflatten(-1, (-1, 2)).unbind(-1)
    low, above = (even & 15) | (odd << 4), bits - 4
    if not above:
        return low
    high, each = torch.cat([even, odd], -1) >> 4, 8 // above  # numbers in a byte
    parts = F.pad(high, (0, -high.shape[-1] % each)).unflatten(-1, (each, -1)).unbind(-2)
    together = sum((part << above * place for place, part in enumerate(parts)), start=torch.zeros_like(parts[0]))
    return torch.cat([low, together], -1)


def _parted(joined: Tensor, bits: int) -> Tensor:
    """Return the numbers that `_joined` has put together."""
    half, above = 4 * joined.shape[-1] // bits, bits - 4
    low, high = joined[..., :half], joined[..., half:]
    numbers = torch.cat([low & 15, low >> 4], -1)
    if above:
        parts = [(high >> above * place) & (2**above - 1) for place in range(8 // above)]
        numbers = numbers | (torch.cat(parts, -1)[..., : 2 * half] << 4)
    return torch.stack(numbers.chunk(2, -1), -1).flatten(-2)


def unpack(packed: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Return the numbers (..., D) that `pack` has kept, each the middle of its step."""
    numbers, scale = packed[..., : -SCALE.itemsize], packed[..., -SCALE.itemsize :]
    numbers = _parted(numbers, bits) if bits < 8 else numbers
    width = scale.clone(memory_format=torch.contiguous_format).view(SCALE).to(torch.promote_types(dtype, torch.float32))
    return ((numbers.to(width.dtype) + (0.5 - 2 ** (bits - 1))) * width).to(dtype)


def as_kept(key: Tensor, value: Tensor, bits: int, center: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return keys and values (..., D) as a cache of so many bits gives them back; keys without their `center`."""
    if bits == FULL_BITS:
        return key, value
    key = key if center is None else key - center
    kept = (hadamard(unpack(pack(hadamard(x), bits), bits, x.dtype)).to(x.dtype) for x in (key, value))
    return next(kept), next(kept)
