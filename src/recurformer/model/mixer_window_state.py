"""A window in parallel with a recurrent state of all tokens: attention nearby, retention farther back.

Window and linear attention side by side are LoLCATs' (arXiv 2410.10254) and Infini-attention's (arXiv 2404.07143).
Unlike LoLCATs', the state takes in the window's tokens too, and the outputs are added, without a common normaliser. A
hybrid may learn to ignore its state (arXiv 2510.05901): compare it with the window alone.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers import initialization as init

from .layout import HeadLayout
from .mixer_base import ReplacedHeads
from .mixer_retention import Retention
from .mixer_window import WindowMixer


class WindowStateMixer(Retention):
    """y = w + readout([w; y of retention; values]), w the window's output.

    The readout starts at 0, so that the untrained mixer is the window. The cache's convolution slot holds the window;
    its recurrent slot holds [tokens seen; retention's state] of every row, flat, in float32, which counts to 2^24.
    """

    memories = (64.0,)

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(config, layout, head_dim, layer_index)
        self.window = WindowMixer(config, layout, head_dim, layer_index)
        self.readout = nn.Linear(self.outputs + self.features, self.outputs, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise to the window alone."""
        super().init_weights()
        init.zeros_(self.readout.weight)

    def forward(self, values: Tensor, cache: Cache | None, padding_mask: Tensor | None, heads: ReplacedHeads) -> Tensor:
        """Attend within the window, and add the readout of the state; see `Mixer`."""
        seen = state = None
        if (packed := self.previous(cache, "recurrent")) is not None:
            size = self.head_dim, self.head_dim + 1
            seen, state = packed[:, :1].long(), packed[:, 1:].unflatten(1, (-1, *size))
        near, rows, seen = self.window.attend(values, self.previous(cache, "conv"), seen, padding_mask, heads)
        features, state = self.retain(values, state, padding_mask, heads)
        if cache is not None:
            cache.update_conv_state(rows, self.layer_index, conv_kernel_size=rows.shape[-1])
            cache.update_recurrent_state(torch.cat([seen.to(state.dtype), state.flatten(1)], 1), self.layer_index)
        return near + self.readout(torch.cat([near, features], -1))
