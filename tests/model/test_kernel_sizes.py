"""The C++ kernels trust the sizes that they are given: every tensor of another size, type or layout is refused."""

import pytest
import torch
from test_conv_cpp import rows_and_taps

from recurformer.model import cpp, native
from recurformer.model.cpp import convolve_rows, convolve_rows_backward, scan_rows, scan_rows_backward
from recurformer.model.scan_inputs import NAMES, BlockInputs, StepInputs

pytestmark = pytest.mark.skipif(native.refuses() is not None, reason=str(native.refuses()))
B, L, D, N, K, S, F = 3, 40, 5, 4, 4, 2, 6  # rows, tokens, channels, states, taps, step features, features


def zeros(*shapes):
    return [-torch.ones(shape) for shape in shapes]


def scan_tensors():
    shapes = (B, L, D), (B, L, D), (N, D), (B, L, N), (B, L, N), (D,), (B, L, D), (D,), (B, N, D)
    return dict(zip(NAMES, zeros(*shapes), strict=True))


def scan_back(grad_y, grad_last, starts, **tensors):
    return scan_rows_backward(grad_y, grad_last, starts, *tensors.values(), True)


def convolution():
    names = "x", "weight", "bias", "history"
    return dict(zip(names, (x.detach() for x in rows_and_taps(B, L, D, K)), strict=True))


OPERATORS = {
    "scan": (lambda **tensors: scan_rows(*tensors.values(), False), scan_tensors),
    "scan backward": (
        scan_back,
        lambda: (
            dict(zip(("grad_y", "grad_last", "starts"), zeros((B, L, D), (B, N, D), (B, 2, N, D)), strict=True))
            | scan_tensors()
        ),
    ),
    "convolution": (lambda **tensors: convolve_rows(*tensors.values()), convolution),
    "convolution backward": (
        lambda **tensors: convolve_rows_backward(*tensors.values()),
        lambda: {"grad_y": torch.ones(B, L, D), **convolution()},
    ),
    "state step": (
        lambda **tensors: cpp.state_step(StepInputs(**tensors)),
        lambda: dict(
            zip(
                StepInputs._fields,
                zeros((B, D), (B, D), (D, N), (B, N), (B, N), (D,), (B, D), (B, D, N)),
                strict=True,
            )
        ),
    ),
    "convolution step": (
        cpp.conv_step,
        lambda: dict(zip(("x", "window", "weight", "bias"), zeros((B, D), (B, D, K), (D, K), (D,)), strict=True)),
    ),
    "product": (
        cpp.product,
        lambda: dict(zip(("x", "weight", "bias"), zeros((B, F), (D, F), (D,)), strict=True)),
    ),
    "block step": (
        lambda **tensors: cpp.block_step(BlockInputs(**tensors)),
        lambda: dict(
            zip(
                BlockInputs._fields,
                zeros(
                    (B, F), (2 * D, F), (D, 1, K), (D,), (S + 2 * N, D), (S + 2 * N,), (D, S), (D,), (D, N), (D,),
                    (B, D, K), (B, D, N),
                ),
                strict=True,
            )
        ),
    ),
}  # fmt: skip


FREE = {("convolution", "x", 1), ("product", "x", 0)}
"""Sizes that no other tensor has."""


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_size_is_checked(operator):
    run, make = OPERATORS[operator]
    run(**make())
    wrong = []
    for name, x in make().items():
        for dim in range(x.dim()):
            if (operator, name, dim) in FREE:
                continue
            for size in (1, x.shape[dim] + 1) if x.shape[dim] > 1 else (2,):
                changed = x.narrow(dim, 0, 1) if size == 1 else torch.cat([x, x.narrow(dim, 0, 1)], dim)
                wrong.append((name, changed.contiguous()))
        wrong += [(name, x[..., None]), (name, x.double())]
    for name, x in wrong:
        with pytest.raises((RuntimeError, ValueError), match=r"^C\+\+ kernels: |^too many values to unpack") as error:
            run(**make() | {name: x})
        assert "\n" not in str(error.value), (name, x.shape)


@pytest.mark.parametrize("operator", ["state step", "convolution step", "product", "block step"])
def test_gaps_between_numbers_are_refused(operator):
    run, make = OPERATORS[operator]
    for name, x in make().items():
        with pytest.raises(RuntimeError, match=rf"^C\+\+ kernels: {name} has gaps"):
            run(**make() | {name: torch.stack([x, x], -1)[..., 0]})


def test_a_missing_tensor_is_refused():
    run, make = OPERATORS["block step"]
    for name in ("bias", "D", "window", "state"):
        with pytest.raises(RuntimeError, match=rf"^C\+\+ kernels: {name} must be .*, but it is None"):
            run(**make() | {name: None})
