"""The C++ convolution and decoding steps against torch."""

import pytest
import torch
from scan_cases import definition, deviation, make_inputs
from torch.nn import functional as F

from recurformer.model import cpp, native
from recurformer.model.cpp import convolve_rows, refuses_convolution, refuses_step
from recurformer.model.mamba import causal_conv
from recurformer.model.scan_inputs import StepInputs

pytestmark = pytest.mark.skipif(native.load_library().functions is None, reason=str(native.refuses()))


def rows_and_taps(batch, length, channels, taps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (batch, length, channels), (channels, taps), (channels,), (batch, channels, taps - 1)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def convolution(x, weight, bias, history):
    """The definition in float64, by torch's own convolution."""
    x, weight = x.double().transpose(1, 2), weight.double()
    before = torch.zeros(*x.shape[:2], weight.shape[1] - 1).double() if history is None else history.double()
    y = F.conv1d(
        torch.cat([before, x], -1), weight[:, None], None if bias is None else bias.double(), groups=len(weight)
    )
    return F.silu(y).transpose(1, 2)


@pytest.mark.parametrize("shape", [(2, 70, 40, 4), (1, 1, 1, 4), (3, 33, 32, 3), (1, 64, 97, 2), (2, 2, 5, 4)], ids=str)
@pytest.mark.parametrize("without", [(), (2,), (3,), (2, 3)], ids=str)
def test_convolution_and_gradients(shape, without):
    inputs = [None if place in without else x for place, x in enumerate(rows_and_taps(*shape))]
    given = [x for x in inputs if x is not None]
    y, expected = convolve_rows(*inputs), convolution(*inputs)
    direction = torch.randn(y.shape)
    grads = torch.autograd.grad((y * direction).sum(), given)
    wanted = torch.autograd.grad((expected * direction).sum(), given)
    for result, exact in zip((y, *grads), (expected, *wanted), strict=True):
        assert deviation(result, exact.double()) < 3e-6


def test_strided_rows_and_expanded_gradients():
    x, weight, bias, history = rows_and_taps(2, 40, 24, 4)
    wide = torch.randn(2, 40, 60)
    assert (
        deviation(
            convolve_rows(wide[..., 20:44], weight, bias, history), convolution(wide[..., 20:44], weight, bias, history)
        )
        < 1e-6
    )
    spread = torch.autograd.grad(convolve_rows(x, weight, bias, history).sum(), [x, weight])  # stride 0
    exact = torch.autograd.grad(convolution(x, weight, bias, history).sum(), [x, weight])
    assert all(deviation(a, b.double()) < 3e-6 for a, b in zip(spread, exact, strict=True))


def test_operator_is_well_formed():
    torch.library.opcheck(convolve_rows, tuple(rows_and_taps(2, 40, 24, 4)))
    torch.library.opcheck(convolve_rows, (*rows_and_taps(1, 3, 4, 2)[:2], None, None))


def test_state_steps_equal_the_scan():
    inputs = {n: x.detach() for n, x in make_inputs(3, 37, 20, 5, torch.float32, without=("delta_bias",)).items()}
    exact, last = definition(**inputs, delta_softplus=True)
    state = inputs["initial_state"].clone()
    rows = {name: inputs[name].transpose(1, 2).contiguous() for name in ("u", "delta", "B", "C", "z")}
    for t in range(20):
        step = {name: x[:, t] for name, x in rows.items()}  # (B, X), rows of a longer tensor
        y = cpp.state_step(StepInputs(**step, A=inputs["A"], D=inputs["D"], state=state))
        assert deviation(y, exact[..., t]) < 2e-6
    assert deviation(state, last) < 2e-6


@pytest.mark.parametrize("bias", [True, False])
def test_convolution_steps_equal_the_convolution(bias):
    x, weight, offset, history = (x.detach() for x in rows_and_taps(3, 20, 37, 4))
    offset = offset if bias else None
    window = torch.cat([torch.randn(3, 37, 1), history], -1)
    exact = convolution(x, weight, offset, history)
    for t in range(20):
        assert deviation(cpp.conv_step(x[:, t], window, weight, offset), exact[:, t]) < 1e-6
    assert torch.equal(window, x[:, -4:].transpose(1, 2))


def test_other_precisions_beside_float32_rows_are_not_read_as_float32():
    x, weight, bias, history = (x.detach() for x in rows_and_taps(1, 9, 8, 4))
    exact = convolution(x, weight, bias, history)
    assert "bfloat16" in refuses_convolution(x, weight, bias, history.bfloat16())
    assert deviation(causal_conv(x, history.bfloat16(), weight, bias), exact) < 1e-2
    assert "bfloat16" in refuses_convolution(x, weight.bfloat16(), bias, history)


def test_the_environment_rules_over_convolution_and_steps_too(monkeypatch):
    x, weight, bias, history = (x.detach() for x in rows_and_taps(1, 9, 8, 4))
    with torch.no_grad():
        assert refuses_convolution(x, weight, bias, history) is None and refuses_step((x[:, 0],), (weight,)) is None
        monkeypatch.setenv("RECURFORMER_SCAN", "torch")
        for reason in (refuses_convolution(x, weight, bias, history), refuses_step((x[:, 0],), (weight,))):
            assert reason == "RECURFORMER_SCAN is torch"


def test_an_unknown_number_of_taps_is_refused():
    x, weight, bias, _ = (x.detach() for x in rows_and_taps(1, 9, 8, 5))
    with pytest.raises(ValueError, match="not 5"):
        convolve_rows(x, weight, bias, None)
