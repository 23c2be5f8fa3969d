"""The Mamba block (S6, arXiv 2312.00752) that takes the place of a layer's recency-aware heads.

Parameter names and shapes are mamba_ssm's; the state dict of transformers' `MambaMixer` loads as it is. Unlike it,
the block continues a cached sequence by any number of tokens, keeps its state in float32, and trains at linear cost.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers import initialization as init

from .scan import selective_scan

STEP_SIZE_RANGE = (1e-3, 1e-1)  # of delta at initialisation, log-uniform, as published
STEP_SIZE_FLOOR = 1e-4


class MambaBlock(nn.Module):
    """in_proj -> causal depthwise convolution -> SiLU -> selective scan -> gate -> out_proj.

    Args:
        width: features of the input and the output; here heads * head_dim of the replaced heads.
        d_state: states N per channel.
        d_conv: taps of the convolution.
        expand: channels D = expand * width.
        dt_rank: rank of the step-size projection.
        layer_index: the layer's place in the cache.
    """

    def __init__(self, width: int, d_state: int, d_conv: int, expand: int, dt_rank: int, layer_index: int):
        super().__init__()
        self.layer_index, self.d_state, self.d_conv, self.dt_rank = layer_index, d_state, d_conv, dt_rank
        channels = expand * width
        self.in_proj = nn.Linear(width, 2 * channels, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, d_conv, groups=channels)
        self.x_proj = nn.Linear(channels, dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(dt_rank, channels)
        self.A_log = nn.Parameter(torch.empty(channels, d_state))
        self.D = nn.Parameter(torch.empty(channels))
        self.out_proj = nn.Linear(channels, width, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise as mamba_ssm does: S4D-real A, D = 1, softplus(dt bias) log-uniform, PyTorch's default elsewhere.

        Written with transformers' `init` functions, which leave parameters alone that a checkpoint has filled.
        """
        for layer in (self.in_proj, self.conv1d, self.x_proj, self.out_proj):
            init.kaiming_uniform_(layer.weight, a=math.sqrt(5))
        bound = self.d_conv**-0.5
        init.uniform_(self.conv1d.get_parameter("bias"), -bound, bound)
        init.copy_(self.A_log, torch.arange(1, self.d_state + 1, device=self.A_log.device).log().expand_as(self.A_log))
        init.ones_(self.D)
        init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        low, high = (math.log(size) for size in STEP_SIZE_RANGE)
        step = torch.rand(self.D.shape, device=self.D.device, dtype=torch.float32)
        step = torch.exp(step * (high - low) + low).clamp(min=STEP_SIZE_FLOOR)
        init.copy_(self.dt_proj.bias, step + torch.log(-torch.expm1(-step)))  # the inverse of softplus

    def forward(self, x: Tensor, cache: Cache | None = None, padding_mask: Tensor | None = None) -> Tensor:
        """Mix (B, L, width) along L.

        Args:
            x: inputs (B, L, width).
            cache: a transformers cache; this layer's states are continued and updated in place.
            padding_mask: (B, L), 0 at padding tokens, which then neither enter the convolution nor the state.
        """
        length = x.shape[1]
        if padding_mask is not None:
            x = x * padding_mask.unsqueeze(-1).to(x.dtype)
        values, gate = self.in_proj(x).transpose(1, 2).chunk(2, dim=1)  # (B, D, L)
        state: Tensor | None = None
        if cache is not None:
            layer: Any = cache.layers[self.layer_index]
            if layer.has_previous_state[0]:
                state = layer.recurrent_states[0]
                if torch.is_grad_enabled():  # the cache updates in place what autograd has to keep
                    state = layer.recurrent_states[0].clone()
            values = cache.update_conv_state(
                values, self.layer_index, conv_kernel_size=self.d_conv
            )  # history, new columns
        window = length + self.d_conv - 1
        values = F.pad(values, (max(0, window - values.shape[-1]), 0))[..., -window:]
        values = F.silu(self.conv1d(values))  # (B, D, L)
        if padding_mask is not None:
            values = values * padding_mask.unsqueeze(1).to(values.dtype)
        rank, width = self.dt_rank, self.d_state
        step, write, read = self.x_proj(values.transpose(1, 2)).split([rank, width, width], dim=-1)
        y, state = selective_scan(
            values,
            self.dt_proj(step).transpose(1, 2),
            -torch.exp(self.A_log.float()),
            write.transpose(1, 2),
            read.transpose(1, 2),
            D=self.D.float(),
            z=gate,
            delta_softplus=True,
            initial_state=state,
            return_last_state=True,
        )
        if cache is not None:
            cache.update_recurrent_state(state, self.layer_index)
        return self.out_proj(y.transpose(1, 2))
