"""The C++ scan against the float64 definition, for each instruction set of this processor, and without a compiler."""

import ctypes
import stat

import pytest
import torch
from scan_cases import compare, definition, deviation, make_inputs

from recurformer.model import cpp, native, scan
from recurformer.model.cpp import scan_rows
from recurformer.model.scan import selective_scan

pytestmark = pytest.mark.skipif(native.load_library().functions is None, reason=str(native.refuses()))

OPTIONAL = ("D", "z", "delta_bias", "initial_state")
SHAPES = [(2, 5, 70, 4), (1, 1, 1, 16), (3, 33, 32, 8), (1, 64, 33, 32), (2, 97, 65, 16), (1, 31, 5, 64)]
LEVELS = ["DEFAULT", "AVX2", "AVX512"]


@pytest.fixture(params=LEVELS)
def instruction_set(request, monkeypatch):
    best = torch.backends.cpu.get_cpu_capability()
    if best not in LEVELS or LEVELS.index(request.param) > LEVELS.index(best):
        pytest.skip(f"this processor has {best} only")
    functions = ctypes.CDLL(str(native.build(request.param)))
    monkeypatch.setattr(native, "load_library", lambda: native.Library(functions, request.param, "under test"))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_definition(shape, instruction_set):
    for without in ((), ("initial_state",), ("z", "D", "delta_bias"), OPTIONAL):
        compare(make_inputs(*shape, dtype=torch.float32, without=without), "cpp", tolerance=2e-6)
    for weights in ((1.0, 0.0), (0.0, 1.0)):
        compare(make_inputs(*shape, dtype=torch.float32), "cpp", weights=weights)


def test_the_accuracy_is_that_of_float32():
    inputs = make_inputs(1, 96, 512, 16, dtype=torch.float32, without=("initial_state",))
    exact, _ = definition(**inputs, delta_softplus=True)
    assert deviation(selective_scan(**inputs, delta_softplus=True, backend="cpp"), exact) <= 1e-6


def test_strided_rows_of_a_projection_are_not_copied(monkeypatch):
    projection = torch.randn(2, 40, 2 * 24 + 2 * 4)
    u, z, B, C = (x.transpose(1, 2) for x in projection.split([24, 24, 4, 4], dim=-1))
    inputs = make_inputs(2, 24, 40, 4, dtype=torch.float32) | {"u": u, "z": z, "B": B, "C": C}
    compare({name: x.detach().requires_grad_() for name, x in inputs.items()}, "cpp")
    seen = []
    monkeypatch.setattr(native, "call", lambda function, arguments, outputs: seen.append(arguments) or 0)
    with torch.no_grad():
        selective_scan(**inputs, delta_softplus=True, backend="cpp")
    assert (seen[0].u, seen[0].C) == (u.data_ptr(), C.data_ptr())
    assert seen[0].u_stride == seen[0].B_stride == projection.shape[-1]


def test_odd_strides_of_single_rows_and_channels():
    """A dimension of size one may have any stride."""
    inputs, numbers = make_inputs(1, 1, 1, 4, dtype=torch.float32), torch.randn(9)
    compare(inputs | {"u": torch.as_strided(numbers, (1, 1, 1), [1, 5, 3]).requires_grad_()}, "cpp")
    inputs = make_inputs(3, 24, 1, 4, dtype=torch.float32)
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    compare(inputs | {"u": torch.as_strided(numbers, (3, 24, 1), [24, 1, 17]).requires_grad_()}, "cpp")


def test_not_a_number_is_not_hidden():
    inputs = {name: x.detach() for name, x in make_inputs(1, 40, 50, 4, dtype=torch.float32).items()}
    for name in ("u", "delta", "B", "z", "A"):
        spoiled = inputs | {name: inputs[name].clone()}
        spoiled[name].view(-1)[3] = float("nan")
        assert selective_scan(**spoiled, delta_softplus=True, backend="cpp").isnan().any(), name


def test_a_growing_state_is_refused():
    inputs = make_inputs(1, 4, 5, 4, dtype=torch.float32)
    with pytest.raises(ValueError, match="A must be negative"):
        selective_scan(**inputs | {"A": -inputs["A"].detach()}, delta_softplus=True, backend="cpp")


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_more_threads_than_samples_and_the_reverse(batch):
    """Each thread sums dB and dC of its own samples."""
    inputs, before = make_inputs(batch, 100, 700, 16, dtype=torch.float32), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert inputs["u"].numel() * 16 > cpp.PARALLEL_FROM
        compare(inputs, "cpp", tolerance=5e-6)
    finally:
        torch.set_num_threads(before)


def test_operator_is_well_formed():
    inputs = make_inputs(2, 3, 40, 4, dtype=torch.float32)
    rows = [x.detach().transpose(-1, -2).contiguous().requires_grad_() if x.dim() > 1 else x for x in inputs.values()]
    torch.library.opcheck(scan_rows, (*rows, True))
    torch.library.opcheck(scan_rows, (*rows[:5], None, None, None, None, True))


def test_the_library_is_built_once_and_whole(tmp_path, monkeypatch):
    monkeypatch.setenv(native.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(native, "OPTIMISE", tuple(flag for flag in native.OPTIMISE if flag[:2] != "-O"))
    path = native.build("DEFAULT")
    made = path.stat().st_mtime_ns
    assert native.build("DEFAULT") == path and path.stat().st_mtime_ns == made
    assert {file.suffix for file in tmp_path.iterdir()} <= {".so", ".lock"}
    monkeypatch.setattr(native, "COMPILERS", ())
    monkeypatch.delenv("CXX", raising=False)
    assert native.build("DEFAULT") == path  # one that is kept needs no compiler
    with pytest.raises(OSError, match="no C\\+\\+ compiler"):
        native.build("NO AVX")


def test_without_a_working_compiler_torch_takes_over(tmp_path, monkeypatch):
    (tmp_path / "cc").write_text("#!/bin/sh\necho step.cpp: error: a broken compiler >&2; exit 1\n")
    (tmp_path / "cc").chmod(stat.S_IRWXU)
    monkeypatch.setenv("CXX", str(tmp_path / "cc"))
    monkeypatch.setenv(native.CACHE_VARIABLE, str(tmp_path / "cache"))
    library = native.load_library.__wrapped__()
    monkeypatch.setattr(native, "load_library", lambda: library)
    monkeypatch.setattr(scan, "used_backends", set())
    inputs = make_inputs(1, 4, 9, 4, dtype=torch.float32)
    selective_scan(**inputs, delta_softplus=True)
    assert scan.used_backends == {"torch"}
    assert "error: a broken compiler" in native.refuses()
    assert not list((tmp_path / "cache").glob("*.so"))
