"""The Mamba block against transformers' own, and its convolution against torch's Conv1d."""

import pytest
import torch
from tiny_models import difference
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, LlamaConfig
from transformers.models.mamba import modeling_mamba
from transformers.models.mamba.configuration_mamba import MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer

from recurformer.model import mamba
from recurformer.model.mamba import CausalConv, MambaBlock, causal_conv, conv_step, state_step
from recurformer.model.scan import selective_scan

WIDTH, LENGTH = 12, 40


def make_block(dtype=torch.float32, d_conv=4):
    torch.manual_seed(0)
    block = MambaBlock(WIDTH, d_state=5, d_conv=d_conv, expand=2, dt_rank=3, layer_index=0)
    for layer in (block.in_proj, block.x_proj, block.out_proj):
        layer.weight.data *= 2
    return block.to(dtype).requires_grad_(False)


def make_cache():
    config = LlamaConfig(num_hidden_layers=1)
    config.layer_types = ["linear_attention"]
    return DynamicCache(config=config)


def run_in_pieces(block, x, cuts):
    cache = make_cache()
    pieces = zip((0, *cuts), (*cuts, x.shape[1]), strict=True)
    return torch.cat([block(x[:, start:stop], cache) for start, stop in pieces], 1)


CUTS = [(2, 3), (33,), tuple(range(1, LENGTH))]


@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: f"{len(cuts)}-{cuts[0]}")
@pytest.mark.parametrize("d_conv", [1, 2, 4])
def test_pieces_equal_one_run(cuts, d_conv):
    block, x = make_block(d_conv=d_conv), torch.randn(2, LENGTH, WIDTH)
    assert difference(run_in_pieces(block, x, cuts), block(x)) < 1e-5


def make_mixer(block):
    config = MambaConfig(
        hidden_size=WIDTH, state_size=5, conv_kernel=4, expand=2, time_step_rank=3, num_hidden_layers=1, use_bias=False
    )
    mixer = MambaMixer(config, layer_idx=0)
    mixer.load_state_dict(block.state_dict(), strict=True)
    return mixer.eval()


@pytest.fixture
def torch_path(monkeypatch):
    """Keep the oracle on its own torch code, whatever kernels the machine has."""
    for name in ("mamba_inner_fn", "mamba_selective_scan", "mamba_selective_state_update"):
        function = getattr(modeling_mamba, name)
        monkeypatch.setattr(modeling_mamba, name, getattr(function, "__wrapped__", function))


def test_mixer_agrees_under_padding_and_in_single_steps(torch_path):
    block = make_block()
    mixer = make_mixer(block)
    x = torch.randn(3, LENGTH, WIDTH)
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    mask[1, :7], mask[2, :30] = 0, 0
    expected = mixer(x, attention_mask=mask)
    assert difference(block(x, padding_mask=mask)[mask.bool()], expected[mask.bool()]) < 1e-5
    cache, ours = make_cache(), []
    theirs_cache, theirs = make_cache(), []
    for piece in x.split([LENGTH - 3, 1, 1, 1], 1):
        ours.append(block(piece, cache))
        theirs.append(mixer(piece, cache_params=theirs_cache))
    assert difference(torch.cat(ours, 1), torch.cat(theirs, 1)) < 1e-5


def test_mixer_gradients_agree(torch_path):
    block = make_block().requires_grad_(True)
    mixer = make_mixer(block)
    x = torch.randn(2, LENGTH, WIDTH)
    block(x).square().sum().backward()
    mixer(x).square().sum().backward()
    expected = dict(mixer.named_parameters())
    for name, parameter in block.named_parameters():
        assert difference(parameter.grad, expected[name].grad) < 1e-4, name


def test_published_initialisation():
    torch.manual_seed(0)
    block = MambaBlock(64, d_state=16, d_conv=4, expand=2, dt_rank=8, layer_index=0)
    assert torch.allclose(-torch.exp(block.A_log), -torch.arange(1.0, 17).expand(128, 16))
    assert torch.equal(block.D, torch.ones(128))
    step = F.softplus(block.dt_proj.bias)
    assert 1e-3 <= step.min() < 3e-3 and 3e-2 < step.max() <= 0.1001
    assert 0.3 < block.dt_proj.weight.abs().max() <= 8**-0.5
    assert 0.9 * 64**-0.5 < block.in_proj.weight.abs().max() <= 64**-0.5


def test_state_is_float32_in_a_bfloat16_block():
    block, cache = make_block(torch.bfloat16), make_cache()
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.bfloat16)
    pieces = torch.cat([block(piece, cache) for piece in x.split([30, 9, 1], 1)], 1)
    assert cache.layers[0].recurrent_states[0].dtype == torch.float32
    assert cache.layers[0].conv_states[0].dtype == pieces.dtype == torch.bfloat16
    assert difference(pieces, block(x)) < 3e-2
    assert difference(pieces, make_block()(x.float())) < 5e-2


def test_a_single_token_updates_the_cached_states_where_they_are(monkeypatch):
    block, cache, x = make_block(), make_cache(), torch.randn(2, LENGTH, WIDTH)
    stepped = []

    def states_first(*arguments, **keywords):  # as a backend lays the last state out that keeps channels side by side
        y, state = selective_scan(*arguments, **keywords)
        return y, state.transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(mamba, "selective_scan", states_first)
    monkeypatch.setattr(mamba, "state_step", lambda step: stepped.append(step.state) or state_step(step))
    with torch.no_grad():
        block(x[:, :-1], cache)
        layer = cache.layers[0]
        states = [layer.conv_states[0], layer.recurrent_states[0]]
        before = [(state.data_ptr(), state.clone()) for state in states]
        y = block(x[:, -1:], cache)
        assert all(state.is_contiguous() for state in states)  # the kernels take no others
        assert stepped == [states[1]] and layer.recurrent_states[0] is states[1]
        for state, (address, old) in zip(states, before, strict=True):
            assert state.data_ptr() == address and not torch.equal(state, old)
        assert difference(y, block(x)[:, -1:]) < 1e-5


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
