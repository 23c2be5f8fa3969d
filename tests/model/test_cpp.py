"""The C++ convolution and steps against torch; every tensor of another size, type or layout is refused."""

import platform
import re
import sys
from pathlib import Path

import pytest
import torch
from scan_cases import definition, deviation, make_inputs
from torch.nn import functional

from recurformer.model import cpp_step, native
from recurformer.model.cpp import (
    convolve_rows,
    convolve_rows_backward,
    refuses_convolution,
    scan_rows,
    scan_rows_backward,
)
from recurformer.model.cpp_step import BlockInputs, StepInputs, takes
from recurformer.model.mamba import causal_conv
from recurformer.model.scan_inputs import NAMES

pytestmark = pytest.mark.skipif(native.load_library().functions is None, reason=str(native.refuses()))

PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


def rows_and_taps(batch, length, channels, taps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (batch, length, channels), (channels, taps), (channels,), (batch, channels, taps - 1)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def convolution(x, weight, bias, history):
    """The definition in float64, by torch's own convolution."""
    x, weight = x.double().transpose(1, 2), weight.double()
    before = torch.zeros(*x.shape[:2], weight.shape[1] - 1).double() if history is None else history.double()
    y = functional.conv1d(
        torch.cat([before, x], -1), weight[:, None], None if bias is None else bias.double(), groups=len(weight)
    )
    return functional.silu(y).transpose(1, 2)


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
        y = cpp_step.state_step(StepInputs(**step, A=inputs["A"], D=inputs["D"], state=state))
        assert deviation(y, exact[..., t]) < 2e-6
    assert deviation(state, last) < 2e-6


@pytest.mark.parametrize("bias", [True, False])
def test_convolution_steps_equal_the_convolution(bias):
    x, weight, offset, history = (x.detach() for x in rows_and_taps(3, 20, 37, 4))
    offset = offset if bias else None
    window = torch.cat([torch.randn(3, 37, 1), history], -1)
    exact = convolution(x, weight, offset, history)
    for t in range(20):
        assert deviation(cpp_step.conv_step(x[:, t], window, weight, offset), exact[:, t]) < 1e-6
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
        assert refuses_convolution(x, weight, bias, history) is None and takes((x[:, 0],), (weight,))
        monkeypatch.setenv("RECURFORMER_SCAN", "torch")
        assert refuses_convolution(x, weight, bias, history) == "RECURFORMER_SCAN is torch"
        assert not takes((x[:, 0],), (weight,))


B, L, D, N, K, S, F = 3, 40, 5, 4, 4, 2, 6  # rows, tokens, channels, states, taps, step features, features


SCAN = dict(
    zip(NAMES, [(B, L, D), (B, L, D), (N, D), (B, L, N), (B, L, N), (D,), (B, L, D), (D,), (B, N, D)], strict=True)
)
CONVOLUTION = {"x": (B, L, D), "weight": (D, K), "bias": (D,), "history": (B, D, K - 1)}
STEP = [(B, D), (B, D), (D, N), (B, N), (B, N), (D,), (B, D), (B, D, N)]
BLOCK = [
    (B, F),
    (2 * D, F),
    (D, 1, K),
    (D,),
    (S + 2 * N, D),
    (S + 2 * N,),
    (D, S),
    (D,),
    (B, D, K),
    (D, N),
    (D,),
    (B, D, N),
]
OPERATORS = {
    "scan": (lambda **tensors: scan_rows(*tensors.values(), False), SCAN),
    "scan backward": (
        lambda **tensors: scan_rows_backward(*tensors.values(), True),
        {"grad_y": (B, L, D), "grad_last": (B, N, D), "starts": (B, 2, N, D)} | SCAN,
    ),
    "convolution": (lambda **tensors: convolve_rows(*tensors.values()), CONVOLUTION),
    "convolution backward": (
        lambda **tensors: convolve_rows_backward(*tensors.values()),
        {"grad_y": (B, L, D)} | CONVOLUTION,
    ),
    "state step": (
        lambda **tensors: cpp_step.state_step(StepInputs(**tensors)),
        dict(zip(StepInputs._fields, STEP, strict=True)),
    ),
    "convolution step": (cpp_step.conv_step, {"x": (B, D), "window": (B, D, K), "weight": (D, K), "bias": (D,)}),
    "block step": (
        lambda **tensors: cpp_step.block_step(BlockInputs(**tensors)),
        dict(zip(BlockInputs._fields, BLOCK, strict=True)),
    ),
}
"""Name -> how it is called, and the shape of each tensor."""


def given(operator):
    return {name: -torch.ones(shape) for name, shape in OPERATORS[operator][1].items()}


FREE = {("convolution", "x", 1)}
"""Sizes that no other tensor has."""


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_size_is_checked(operator):
    run, tensors, wrong = OPERATORS[operator][0], given(operator), []
    run(**tensors)
    for name, x in tensors.items():
        for dim in range(x.dim()):
            if (operator, name, dim) in FREE:
                continue
            for size in (1, x.shape[dim] + 1) if x.shape[dim] > 1 else (2,):
                changed = x.narrow(dim, 0, 1) if size == 1 else torch.cat([x, x.narrow(dim, 0, 1)], dim)
                wrong.append((name, changed.contiguous()))
        wrong += [(name, x[..., None]), (name, x.double())]
    for name, x in wrong:
        with pytest.raises((RuntimeError, ValueError), match=r"^C\+\+ kernels: |^too many values to unpack") as error:
            run(**given(operator) | {name: x})
        assert "\n" not in str(error.value), (name, x.shape)


@pytest.mark.parametrize("operator", ["state step", "convolution step", "block step"])
def test_gaps_between_numbers_are_refused(operator):
    for name, x in given(operator).items():
        with pytest.raises(RuntimeError, match=rf"^C\+\+ kernels: {name} has gaps"):
            OPERATORS[operator][0](**given(operator) | {name: torch.stack([x, x], -1)[..., 0]})


def large_pages(x):
    """Kilobytes in large pages of the mapping that a tensor lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(head[1], 16) <= x.data_ptr() + x.nbytes // 2 < int(head[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1])
    return 0


def test_weights_come_into_large_pages_as_they_are(tmp_path):
    torch.save(torch.arange(2**20), tmp_path / "mapped.pt")
    mapped = torch.load(tmp_path / "mapped.pt", mmap=True)
    tensors = [torch.arange(8 * native.PAGE), torch.ones(3), torch.empty(0), mapped]
    before = [x.clone() for x in tensors]
    native.use_large_pages(tensors)
    assert all(torch.equal(x, same) for x, same in zip(tensors, before, strict=True))
    version = [int(number) for number in re.findall(r"\d+", platform.release())[:2]]
    if sys.platform != "linux" or version < [6, 1] or "[never]" in Path(PAGES).read_text():
        pytest.skip("this system gives no large pages")
    assert large_pages(tensors[0]) >= 2**15 and large_pages(mapped) == 0
