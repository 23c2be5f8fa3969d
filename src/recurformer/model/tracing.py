"""Blocks of steps in compiled code, which cannot see the length: a loop over them would hold for one length only.

Nothing here pads, slices or folds an axis, because the tracer would ask whether anything is missing or left over.
"""

import torch
from torch import Tensor


def any_length(length: int, block: int) -> bool:
    """Return whether the code must work for any number of blocks: compiled code beyond one block."""
    return torch.compiler.is_compiling() and length > block


def spans(length: int, block: int, width: int, device: torch.device) -> Tensor:
    """Return `width` indices for every block of `block` steps, from its first step on, (blocks, width)."""
    count = (length + block - 1) // block
    return block * torch.arange(count, device=device).unsqueeze(1) + torch.arange(width, device=device)


def at_spans(x: Tensor, index: Tensor, dim: int, behind: int) -> Tensor:
    """Return the entries of x along `dim` at the indices (blocks, width), two axes in its place; then `behind`."""
    length = x.shape[dim]
    index_of_all: list[slice | Tensor] = [*[slice(None)] * dim, index.clamp(max=length - 1)]
    entries = x[tuple(index_of_all)]
    return entries.masked_fill((index >= length).view(*index.shape, *[1] * (x.dim() - dim - 1)), behind)
