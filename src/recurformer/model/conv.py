"""The causal depthwise convolution with SiLU in front of the selective scan, channels last: nothing is transposed.

It knows no cache: the caller hands in the rows before, as history or as the window that a single step shifts.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .conv_cpp import convolve_rows, usable
from .step import conv_step


def causal_conv(rows: Tensor, history: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    """Return silu(convolution) of every row with the rows before it; half precision is added up in float32.

    Args:
        rows: (B, L, D); strided rows, such as a part of a larger projection, are fine.
        history: the rows before the first, channels first (B, D, taps - 1), or None for zeros.
        weight: (D, taps); the last tap is the row itself.
        bias: (D,).
    """
    if usable(rows, weight, bias, history):
        return convolve_rows(rows, weight, bias, history)
    return convolve_by_taps(rows, history, weight, bias)


def convolve_by_taps(rows: Tensor, history: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    """The same in plain torch: one shifted multiply-add a tap."""
    length, taps = rows.shape[1], weight.shape[1]
    before = rows.new_zeros(len(rows), taps - 1, rows.shape[2]) if history is None else history.transpose(1, 2)
    rows = torch.cat([before, rows], 1)
    result = bias.to(torch.promote_types(bias.dtype, torch.float32))
    for tap in range(taps):
        result = torch.addcmul(result, rows[:, tap : tap + length], weight[:, tap])
    return F.silu(result).to(rows.dtype)


class CausalConv(nn.Conv1d):
    """`causal_conv` with the parameters of a depthwise `nn.Conv1d`.

    Raises:
        ValueError: more arguments, with which PEFT would build an adapter of this class.
    """

    def __init__(self, channels: int, taps: int, *more: Any, **settings: Any):
        if more or settings:
            raise ValueError("a CausalConv takes no adapter: leave conv1d out of target_modules")
        super().__init__(channels, channels, taps, groups=channels)

    def forward(self, rows: Tensor, history: Tensor | None = None, window: Tensor | None = None) -> Tensor:
        """Convolve rows (B, L, D) after `history`, or one row (B, D) that enters the `window` (B, D, taps) in place."""
        weight, bias = self.weight.squeeze(1), self.get_parameter("bias")
        return causal_conv(rows, history, weight, bias) if window is None else conv_step(rows, window, weight, bias)
