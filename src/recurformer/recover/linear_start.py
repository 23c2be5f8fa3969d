"""A start of the paper's own Mamba block from which its channels are linear in the values, with known weights by lag.

A block that starts at random multiplies every channel by a random gate and writes into its state by random factors. No
combination of its channels is the plain average of values that a local head computes. MOHAWK (arXiv 2408.10189)
opens the gate by a bias; the paper's block has none. But the mean of the values is not zero, so a linear function of
them is nearly constant: the least-squares fit of the number one. It takes the place of the missing biases of the gate,
of B and of C.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from recurformer.model.mamba import MambaBlock

OPEN = 1.278464542761
"""SiLU(OPEN) = 1: a gate that lets a channel through as it is."""
SIZE = 0.3
"""Standard deviation of a channel's input, whose mean the convolution's bias takes away: so SiLU is nearly linear."""
RIDGE = 1e-4
RANDOM_FRACTION = 1 / 3
"""Of the channels, or somewhat more, stay as they were: no average of values can replace products of values."""


class Kernel(NamedTuple):
    """Weights of earlier values in a channel: the one `lag` tokens before, or all by exp(-lag / `reach`)."""

    lag: int = 0
    reach: float = 0.0


KERNELS = (Kernel(reach=6), Kernel(lag=1), Kernel(lag=0), Kernel(reach=40), Kernel(lag=2), Kernel(reach=2))
"""The kernels that read a value, in the order of their worth, as many as there are channels for."""


def _constant(features: Tensor) -> Tensor:
    """The weights (features,) by which rows of `features` come nearest to 1, by ridge regression in float64."""
    x = features.double()
    squares = x.mT @ x
    squares += RIDGE * squares.diagonal().mean() * torch.eye(len(squares), dtype=x.dtype, device=x.device)
    return torch.linalg.solve(squares, x.sum(0))


@torch.no_grad()
def linear_start(block: MambaBlock, values: Tensor) -> None:
    """Set the parameters of a freshly initialised block, all but `out_proj`, in place.

    Args:
        block: of any sizes.
        values: its inputs on ordinary text, (B, L, features).

    Raises:
        ValueError: the mixer is no Mamba block.
    """
    if not isinstance(block, MambaBlock):
        raise ValueError(f"start: linear is for Mamba blocks, not for a {type(block).__name__}")
    tokens = values.flatten(0, -2)
    channels, features = len(block.D), tokens.shape[1]
    kernels = [kernel for kernel in KERNELS if kernel.lag < block.d_conv]
    groups = max(1, min(len(kernels), round((1 - RANDOM_FRACTION) * channels / features)))
    gate = OPEN * _constant(tokens)
    spread = tokens.double().std(0)
    least = max(1e-3 * float(spread.square().mean().sqrt()), torch.finfo(torch.float32).eps)  # some may be constant
    scale = SIZE / spread.clamp(min=least)
    taps, bias = block.conv1d.weight, block.conv1d.get_parameter("bias")
    for group, kernel in enumerate(kernels[:groups]):
        rows = slice(group * features, (group + 1) * features)
        block.in_proj.weight[:channels][rows] = torch.diag(scale).to(block.in_proj.weight)
        block.in_proj.weight[channels:][rows] = gate.to(block.in_proj.weight)
        taps[rows], block.A_log[rows], block.dt_proj.weight[rows] = 0, 0, 0
        bias[rows] = (-scale * tokens.double().mean(0)).to(bias)
        taps[rows, ..., block.d_conv - 1 - kernel.lag] = 1
        block.D[rows] = float(kernel.reach == 0)
        step = torch.tensor(1 / kernel.reach if kernel.reach else 1e-4)
        block.dt_proj.bias[rows] = step + torch.log(-torch.expm1(-step))  # the inverse of softplus
    convolved = block.conv1d(block.in_proj(values)[..., :channels], None).flatten(0, -2)
    states = max(1, block.d_state // 2)  # the others keep the random factors that the random channels need
    constant = (_constant(convolved) / states**0.5).to(block.x_proj.weight)
    for matrix in block.x_proj.weight[block.dt_rank :].split(block.d_state):  # of B and C
        matrix[:states] = constant
