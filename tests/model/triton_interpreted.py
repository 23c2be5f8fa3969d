"""The Triton kernels, run on the CPU by Triton's interpreter, against the definition; see `test_scan_triton.py`."""

import pytest
import torch
import triton
import triton.language as tl
from scan_cases import compare, definition, deviation, make_inputs

from recurformer.model import scan_triton
from recurformer.model.scan import selective_scan
from recurformer.model.scan_inputs import ScanInputs


@triton.jit
def count(place, times):
    """The least that the scan's kernels need of the interpreter: up to Triton 3.6 at least it fails with numpy 2.4."""
    for i in range(times):
        tl.store(place, i)


try:
    count[(1,)](torch.zeros(1, dtype=torch.int32), 2)
except triton.runtime.errors.InterpreterError as error:
    pytest.skip(f"Triton {triton.__version__}'s interpreter cannot loop here: {error}", allow_module_level=True)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(scan_triton, "CHUNK", 4)
    monkeypatch.setattr(scan_triton, "AHEAD", 2)


@pytest.mark.parametrize("shape", [(1, 70, 10, 4), (2, 3, 6, 8), (1, 2, 9, 16), (1, 9, 5, 32), (1, 9, 5, 64)], ids=str)
def test_kernels_equal_the_definition(shape):
    compare(make_inputs(*shape, dtype=torch.float32), "triton")


@pytest.mark.parametrize("chunk", [1, 32], ids=["a step", "the sequence"])
def test_chunks_of_any_length(monkeypatch, chunk):
    monkeypatch.setattr(scan_triton, "CHUNK", chunk)
    compare(make_inputs(1, 8, 13, 4, dtype=torch.float32), "triton")


@pytest.mark.parametrize("absent", ["D", "z", "delta_bias", "initial_state"])
def test_optional_inputs(absent):
    compare(make_inputs(1, 5, 10, 4, dtype=torch.float32, without=(absent,)), "triton")


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0)], ids=["output only", "last state only"])
def test_bare_scan_and_either_gradient(weights):
    inputs = make_inputs(1, 5, 10, 4, dtype=torch.float32, without=("D", "z", "delta_bias", "initial_state"))
    with torch.no_grad():
        inputs["delta"].abs_()  # without softplus negative step sizes would grow without bound
    compare(inputs, "triton", delta_softplus=False, weights=weights)


@pytest.mark.parametrize("shift", [-12, 40])
def test_extreme_step_sizes(shift):
    inputs = make_inputs(1, 5, 10, 4, dtype=torch.float32)
    with torch.no_grad():
        inputs["delta"] += shift
    compare(inputs, "triton")


def test_views_of_projections_are_read_in_place():
    generator = torch.Generator().manual_seed(0)
    fused, projected = (torch.randn(2, 6, n, generator=generator) for n in (2 * 5, 3 + 2 * 4))
    u, z = fused.transpose(1, 2).chunk(2, dim=1)
    _, B, C = projected.transpose(1, 2).split([3, 4, 4], dim=1)  # rows of odd length: B and C begin at odd places
    inputs = make_inputs(2, 5, 6, 4, dtype=torch.float32) | {"u": u, "z": z, "B": B, "C": C}
    assert scan_triton.rows(u)[0].data_ptr() == u.data_ptr()
    result = selective_scan(**inputs, delta_softplus=True, backend="triton")
    assert result.transpose(1, 2).is_contiguous()
    assert deviation(result, definition(**inputs, delta_softplus=True)[0]) < 2e-6


def test_bfloat16_inputs_keep_a_float32_state():
    inputs = make_inputs(1, 6, 9, 4, dtype=torch.bfloat16)
    for name in ("A", "initial_state"):
        inputs[name] = inputs[name].detach().float().requires_grad_()
    y, last = selective_scan(**inputs, delta_softplus=True, return_last_state=True, backend="triton")
    expected, expected_last = definition(**inputs, delta_softplus=True)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    assert deviation(last, expected_last) < 1e-6  # the inputs are exact numbers: only the output is rounded
    assert deviation(y, expected) < 1e-2
    compare(inputs, "triton", tolerance=1e-2)


def test_operator_is_well_formed():
    inputs = make_inputs(1, 3, 6, 4, dtype=torch.float32)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(scan_triton.chunked_scan, ScanInputs(**inputs, delta_softplus=True), test_utils=tests)
