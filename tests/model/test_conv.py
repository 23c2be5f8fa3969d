"""The causal convolution, channels last: torch's Conv1d as oracle, gradients, history, and its single step."""

import pytest
import torch
from tiny_models import difference
from torch import nn
from torch.nn import functional as F

from recurformer.model.mamba import CausalConv, causal_conv, conv_step

CHANNELS = 6


def make(taps, dtype=torch.float64):
    torch.manual_seed(taps)
    return CausalConv(CHANNELS, taps).to(dtype)


def stock(conv, rows, history=None):
    """The same by nn.Conv1d's own forward, channels first."""
    taps = conv.kernel_size[0]
    before = torch.zeros(len(rows), CHANNELS, taps - 1, dtype=rows.dtype) if history is None else history
    return F.silu(nn.Conv1d.forward(conv, torch.cat([before, rows.transpose(1, 2)], -1))).transpose(1, 2)


@pytest.mark.parametrize("taps", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 11])
@pytest.mark.parametrize("with_history", [False, True])
def test_it_is_conv1d_with_silu(taps, length, with_history):
    conv = make(taps)
    projected = torch.randn(2, length, 2 * CHANNELS, dtype=torch.float64, requires_grad=True)
    rows = projected.chunk(2, -1)[1]  # strided, as in the block
    history = torch.randn(2, CHANNELS, taps - 1, dtype=torch.float64, requires_grad=True) if with_history else None
    wanted = [projected, *conv.parameters(), *([history] if with_history else [])]
    results = []
    for y in (conv(rows, history), stock(conv, rows, history)):
        results.append([y, *torch.autograd.grad(y.square().sum(), wanted, retain_graph=True)])
    for result, expected in zip(*results, strict=True):
        assert result.shape == expected.shape
        assert torch.allclose(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("taps", [1, 2, 4])
def test_steps_equal_the_whole_and_shift_the_window(taps):
    conv, window = make(taps), torch.zeros(2, CHANNELS, taps, dtype=torch.float64)
    rows = torch.randn(2, 9, CHANNELS, dtype=torch.float64)
    address = window.data_ptr()
    steps = torch.stack([conv(row, window=window) for row in rows.unbind(1)], 1)
    assert difference(steps, conv(rows)) < 1e-12
    assert torch.equal(window, rows[:, -taps:].transpose(1, 2)) and window.data_ptr() == address


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_added_up_in_float32(dtype):
    weight, bias = torch.tensor([[1.0, 1.0, 1.0, 1.0]], dtype=dtype), torch.zeros(1, dtype=dtype)
    rows = torch.tensor([1.0, 2.0**-9, 2.0**-9, 2.0**-9], dtype=dtype).view(1, 4, 1)
    expected = F.silu(rows.float().sum()).to(dtype)
    assert causal_conv(rows, None, weight, bias)[0, -1, 0] == expected
    window = torch.cat([torch.zeros(1, 1, 1, dtype=dtype), rows[:, :3].transpose(1, 2)], -1)
    assert conv_step(rows[:, 3], window, weight, bias)[0, 0] == expected
    assert expected != F.silu(torch.tensor(1.0)).to(dtype)  # adding up in the input's precision would lose the rest
