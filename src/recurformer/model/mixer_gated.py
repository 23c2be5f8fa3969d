"""A gated linear recurrence as of Mamba-2 (arXiv 2405.21060) and gated linear attention (arXiv 2312.06635).

C, B and x of Mamba-2 are the replaced heads' own queries, keys and values: training starts from pretrained weights.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers import initialization as init

from .layout import HeadLayout
from .mamba import initial_step_bias
from .mixer_base import Mixer, ReplacedHeads, join
from .recurrence import decayed_recurrence

A_RANGE = (1.0, 16.0)  # of -A at initialisation, uniform, as published


class GatedMixer(Mixer):
    """S_t = exp(delta_t A) S_{t-1} + delta_t k_t v_t^T and y_t = S_t^T q_t + D v_t, one scalar A, D and delta a head.

    delta = softplus(dt_proj(hidden states)). Queries and keys are of length one, for nothing else bounds their product
    where no softmax follows, and not rotated: the decay tells positions apart. The state is kept in float32.
    """

    reads_keys = True

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(config, layout, head_dim, layer_index)
        count = len(layout.replaced)
        self.dt_proj = nn.Linear(config.hidden_size, count)
        self.A_log = nn.Parameter(torch.empty(count))
        self.D = nn.Parameter(torch.empty(count))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise as Mamba-2 does: A uniform, softplus(dt bias) log-uniform, PyTorch's default elsewhere.

        But D = 0, not 1: the first outputs are then small, as an untrained Mamba block's are. Whole value states, many
        times attention's outputs, would upset the layers after it.
        """
        init.kaiming_uniform_(self.dt_proj.weight, a=math.sqrt(5))
        init.copy_(self.dt_proj.bias, initial_step_bias(self.dt_proj.bias))
        low, high = A_RANGE
        uniform = torch.rand(self.A_log.shape, device=self.A_log.device, dtype=torch.float32)
        init.copy_(self.A_log, torch.log(uniform * (high - low) + low))
        init.zeros_(self.D)

    def forward(self, values: Tensor, cache: Cache | None, padding_mask: Tensor | None, heads: ReplacedHeads) -> Tensor:
        """Run the recurrence; see `Mixer`."""
        dtype = torch.promote_types(values.dtype, torch.float32)
        rates = self.dt_proj(heads.hidden_states).transpose(1, 2).to(dtype)
        delta = F.softplus(rates.contiguous())  # (B, H, L); compiled code fails in the backward pass of other layouts
        if padding_mask is not None:
            delta = delta * padding_mask.unsqueeze(1).to(dtype)
        queries, keys = (_unit(x.to(dtype)).transpose(1, 2) for x in (heads.queries, heads.keys))
        inputs = self.repeat(self.split(values).to(dtype))
        outputs, state = decayed_recurrence(
            queries,
            self.repeat(keys) * delta.unsqueeze(-1),
            inputs,
            -delta * self.A_log.to(dtype).exp().unsqueeze(-1),
            self.previous(cache, "recurrent"),
        )
        if cache is not None:
            cache.update_recurrent_state(state, self.layer_index)
        return join(outputs + self.D.to(dtype)[:, None, None] * inputs, values.dtype)


def _unit(vectors: Tensor) -> Tensor:
    """Return vectors (..., N) at length one; those of zeros, as padding may have, as they are."""
    length = vectors.norm(dim=-1, keepdim=True)
    return vectors / length.masked_fill(length == 0, 1)
