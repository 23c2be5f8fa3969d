"""The registry of mixers, by name; the two smallest stand here."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache

from .layout import HeadLayout
from .mamba import MambaMixer
from .masks import Packing
from .mixer import Mixer, join
from .mixer_window import WindowMixer, WindowStateMixer
from .mixers_state import GatedMixer, LinearMixer, RetentionMixer


class MeanMixer(Mixer):
    """Outputs the mean of the last `window_tokens` values, the token's own among them, without parameters."""

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(config, layout, head_dim, layer_index)
        self.window = config.window_tokens

    def forward(self, values: Tensor, cache: Cache | None = None, padding_mask: Tensor | None = None) -> Tensor:
        """Average over the window; see `Mixer`."""
        rows = F.pad(values, (0, 1), value=1.0)  # (B, L, features + 1): the last one counts the tokens in a window
        packing = None if padding_mask is None else Packing(padding_mask)
        if packing is not None:
            rows = packing.pack(rows)
        new = rows.transpose(1, 2)  # (B, features + 1, L)
        before = self.previous(cache, "conv")
        if before is None:
            before = new.new_zeros(*new.shape[:2], self.window)
        seen = torch.cat([before[..., before.shape[-1] + 1 - self.window :], new], -1)
        if cache is not None:
            newest = new[..., -self.window :] if packing is None else packing.newest(rows, before, self.window)
            cache.update_conv_state(newest, self.layer_index, conv_kernel_size=self.window)
        means = F.avg_pool1d(seen.to(torch.promote_types(seen.dtype, torch.float32)), self.window, stride=1)
        means = (means[:, :-1] / means[:, -1:]).transpose(1, 2)
        means = means if packing is None else packing.unpack(means)
        return join(self.repeat(self.split(means)), values.dtype)


class ZeroMixer(Mixer):
    """Outputs zero and caches nothing, which shows the worth of the replaced heads."""

    def forward(self, values: Tensor, cache: Cache | None = None, padding_mask: Tensor | None = None) -> Tensor:
        """Return zeros; see `Mixer`."""
        return values.new_zeros(*values.shape[:2], sum(self.copies) * self.head_dim)


MIXERS: dict[str, type[Mixer] | type[MambaMixer]] = {
    "mamba": MambaMixer,
    "window": WindowMixer,
    "linear": LinearMixer,
    "gated": GatedMixer,
    "retention": RetentionMixer,
    "window_state": WindowStateMixer,
    "mean": MeanMixer,
    "zero": ZeroMixer,
}
"""A mixer's parameters bear its name in a checkpoint: `model.layers.0.self_attn.mamba.A_log`."""
