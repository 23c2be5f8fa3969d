"""No mixer at all: replaced heads output zero, which shows their worth."""

from torch import Tensor
from transformers import Cache

from .mixer_base import Mixer


class ZeroMixer(Mixer):
    """Outputs zero and caches nothing."""

    def forward(self, values: Tensor, cache: Cache | None = None, padding_mask: Tensor | None = None) -> Tensor:
        """Return zeros; see `Mixer`."""
        return values.new_zeros(*values.shape[:2], sum(self.copies) * self.head_dim)
