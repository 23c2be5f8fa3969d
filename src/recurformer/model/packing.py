"""Padding between real tokens, for mixers that read neighbours: the real tokens move to the row's front, and back.

Padding after the real tokens enters none of their windows. The tokens before a row stay next to its first real token.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


class Packing:
    """Moves the real tokens of every row to its beginning, in order; padding follows.

    Args:
        padding_mask: (B, L), 0 at padding.

    Attributes:
        real: (B, L), whether a place holds a real token after packing.
    """

    def __init__(self, padding_mask: Tensor):
        real = padding_mask.bool()
        self.counts = real.sum(1, keepdim=True)
        places = torch.where(real, real.cumsum(1), self.counts + (~real).cumsum(1)) - 1  # after packing, by token
        self.places = places.unsqueeze(-1)
        self.real = torch.arange(real.shape[1], device=real.device) < self.counts

    def pack(self, rows: Tensor) -> Tensor:
        """Return rows (B, L, features) with the real tokens first."""
        return torch.empty_like(rows).scatter(1, self.places.expand_as(rows), rows)

    def unpack(self, rows: Tensor) -> Tensor:
        """Return packed rows (B, L, features) in their first order."""
        return rows.gather(1, self.places.expand_as(rows))

    def newest(self, rows: Tensor, before: Tensor | None, size: int) -> Tensor:
        """Return every row's last real tokens, channels first (B, features, size), the oldest first.

        Args:
            rows: packed, (B, L, features).
            before: the tokens before the first, (B, features, any number), or None for none.
            size: number of tokens to return; zeros stand for missing ones.
        """
        seen = rows.transpose(1, 2)
        if before is not None:
            seen = torch.cat([before[..., -size:], seen], -1)
        seen = F.pad(seen, (size - (seen.shape[-1] - rows.shape[1]), 0))  # so that `size` columns stand in front
        columns = self.counts + torch.arange(size, device=rows.device)  # (B, size)
        return seen.gather(2, columns.unsqueeze(1).expand(-1, seen.shape[1], -1))
