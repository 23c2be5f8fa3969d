"""A Mamba block with open gates at the start, as MOHAWK's (arXiv 2408.10189, goombalab/mohawk `discrete_mamba2.py`).

The paper's block has no biases on which a gate could stand open. Unlike MOHAWK's, this is still Mamba's first block: a
SiLU follows the convolution.
"""

import torch
from torch import Tensor
from transformers import initialization as init

from .mixer_mamba import MambaMixer

OPEN = 1.278464542761
"""SiLU(OPEN) = 1."""


class OpenMambaMixer(MambaMixer):
    """The paper's block with biases on `in_proj` and `x_proj`; convolution and gates are the identity at the start."""

    biased = True

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise as the paper's block does, but the convolution and the gate."""
        super().init_weights()
        (taps, bias), channels = self.conv1d.parameters(), len(self.D)
        init.copy_(taps, (torch.arange(self.d_conv, device=taps.device) == self.d_conv - 1).expand_as(taps))
        init.zeros_(bias)
        gate = torch.arange(2 * channels, device=bias.device) >= channels
        init.copy_(self.in_proj.bias, OPEN * gate.to(bias.dtype))
        init.zeros_(self.x_proj.bias)

    def _initial_in_proj(self) -> Tensor:
        values, gate = super()._initial_in_proj().chunk(2)
        return torch.cat([values, torch.zeros_like(gate)])
