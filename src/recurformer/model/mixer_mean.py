"""The plain mean of the last values: the simplest mixer that looks back, without parameters."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache

from .layout import HeadLayout
from .mixer_base import Mixer, join
from .packing import Packing


class MeanMixer(Mixer):
    """Outputs the mean of the last `window_tokens` values, the token's own among them."""

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(config, layout, head_dim, layer_index)
        self.window = config.window_tokens

    def forward(self, values: Tensor, cache: Cache | None = None, padding_mask: Tensor | None = None) -> Tensor:
        """Average over the window; see `Mixer`."""
        rows = F.pad(values, (0, 1), value=1.0)  # one more feature, which counts the tokens in a window
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
