"""The selective scan: every backend against the definition, and as an operator of torch."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scan_cases import compare, definition, deviation, load_double, make_inputs

from recurformer.model import native, scan, scan_cuda, scan_torch
from recurformer.model.scan import SCAN_BACKENDS, selective_scan
from recurformer.model.scan_inputs import ScanInputs
from recurformer.model.scan_torch import BLOCK, block_steps, blocked_scan

needs_kernels = pytest.mark.skipif(native.refuses() is not None, reason="needs the C++ kernels")
OPTIONAL = ("D", "z", "delta_bias", "initial_state")


@pytest.fixture
def kernel_double(monkeypatch):
    load_double(monkeypatch)
    monkeypatch.setitem(SCAN_BACKENDS, "mamba_ssm", replace(SCAN_BACKENDS["mamba_ssm"], refuses=lambda *_: None))


SHAPES = [(2, 5, 70, 4), (1, 1, 1, 16), (3, 33, BLOCK, 8), (1, 7, BLOCK + 1, 1), (2, 3, 2, 5)]


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backends_equal_the_definition(backend, shape):
    compare(make_inputs(*shape), backend, tolerance=1e-12)
    compare(make_inputs(*shape, dtype=torch.float32), backend)


def test_shorter_blocks_of_large_batches_change_nothing(monkeypatch):
    inputs = make_inputs(3, 5, 2 * BLOCK + 3, 4)
    assert block_steps(inputs["u"], inputs["A"]) == BLOCK
    monkeypatch.setattr(scan_torch, "CACHED_STATES", 6 * 3 * 5 * 4)
    assert block_steps(inputs["u"], inputs["A"]) == 6
    compare(inputs, "torch", tolerance=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_cuda_extension_is_called_by_its_convention(shape, kernel_double):
    compare(make_inputs(*shape, dtype=torch.float32), "mamba_ssm")
    compare(make_inputs(*shape, dtype=torch.float32, without=("initial_state",)), "mamba_ssm", weights=(1.0, 0.0))
    compare(make_inputs(*shape, dtype=torch.float32, without=("initial_state", "z", "D")), "mamba_ssm")


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or scan_cuda.load_extension().forward is None,
    reason="needs mamba-ssm's kernel and a GPU",
)
def test_mamba_ssm_equals_reference_on_a_gpu():
    inputs = make_inputs(2, 32, 300, 16, dtype=torch.float32)
    exact = selective_scan(**inputs, delta_softplus=True, backend="reference")
    on_gpu = {name: x.detach().cuda() for name, x in inputs.items()}
    assert deviation(selective_scan(**on_gpu, delta_softplus=True, backend="mamba_ssm").cpu(), exact.double()) < 1e-4


@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 3 * BLOCK), st.integers(1, 9)),
    without=st.sets(st.sampled_from(OPTIONAL)),
    delta_softplus=st.booleans(),
    weights=st.sampled_from([(1.0, 1.0), (0.0, 1.0), (1.0, 0.0)]),
    seed=st.integers(0, 1000),
)
def test_any_shape_with_any_inputs_missing(shape, without, delta_softplus, weights, seed):
    inputs = make_inputs(*shape, without=without, seed=seed)
    if not delta_softplus:  # negative step sizes would grow without bound
        with torch.no_grad():
            inputs["delta"].abs_()
            if "delta_bias" in inputs:
                inputs["delta_bias"].abs_()
    compare(inputs, "torch", delta_softplus, tolerance=1e-11, weights=weights)


@pytest.mark.parametrize("backend", ["reference", "torch", "mamba_ssm"])
@pytest.mark.parametrize("cuts", [(1,), (BLOCK,), (3, 50), (BLOCK + 5, 69)], ids=str)
def test_segments_equal_one_run(backend, cuts, kernel_double):
    inputs = make_inputs(2, 4, 70, 3, dtype=torch.float32)
    whole, last = selective_scan(**inputs, delta_softplus=True, return_last_state=True, backend=backend)
    expected = torch.autograd.grad(whole.square().sum() + last.sum(), list(inputs.values()))
    state, parts = inputs["initial_state"], []
    for start, stop in zip((0, *cuts), (*cuts, 70), strict=True):
        part = {n: x[..., start:stop] if n in ("u", "delta", "B", "C", "z") else x for n, x in inputs.items()}
        y, state = selective_scan(
            **part | {"initial_state": state}, delta_softplus=True, return_last_state=True, backend=backend
        )
        parts.append(y)
    assert deviation(torch.cat(parts, -1), whole.double()) < 1e-6
    assert deviation(state, last.double()) < 1e-6
    grads = torch.autograd.grad(torch.cat(parts, -1).square().sum() + state.sum(), list(inputs.values()))
    for name, result, wanted in zip(inputs, grads, expected, strict=True):
        assert deviation(result, wanted.double()) < 5e-6, name


@pytest.mark.parametrize("backend", ["reference", "torch", pytest.param("cpp", marks=needs_kernels)])
@pytest.mark.parametrize(("scale", "shift"), [(20, 0), (1, -9), (1, 40)])
def test_extreme_decays_stay_finite(backend, scale, shift):
    inputs = make_inputs(1, 12, 100, 4, dtype=torch.float32)
    with torch.no_grad():
        inputs["delta"].mul_(scale).add_(shift)
        inputs["A"].mul_(20)
    compare(inputs, backend, tolerance=5e-6)


@pytest.mark.parametrize("backend", ["reference", "torch", "mamba_ssm", pytest.param("cpp", marks=needs_kernels)])
@pytest.mark.parametrize("length", [1, 50])
def test_bfloat16_inputs_keep_a_float32_state(backend, length, kernel_double):
    inputs = make_inputs(2, 6, length, 4, dtype=torch.bfloat16)
    inputs["A"], inputs["initial_state"] = (inputs[n].detach().float() for n in ("A", "initial_state"))
    y, last = selective_scan(**inputs, delta_softplus=True, return_last_state=True, backend=backend)
    expected, expected_last = definition(**inputs, delta_softplus=True)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    assert deviation(last, expected_last) < 1e-6  # the inputs are exact numbers: only the output is rounded
    assert deviation(y, expected) < 1e-2
    y.sum().backward()
    assert inputs["u"].grad.dtype == torch.bfloat16


def test_autocast_does_not_lower_the_precision():
    inputs = make_inputs(2, 6, 50, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compare(inputs, "torch")


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_expanded_gradients(backend):
    inputs = make_inputs(2, 3, 40, 2)
    y, last = selective_scan(**inputs, return_last_state=True, backend=backend)
    grads = torch.autograd.grad(y.sum() + last.sum(), list(inputs.values()))  # sum() hands back stride-0 tensors
    y, last = selective_scan(**inputs, return_last_state=True, backend=backend)
    dense = torch.autograd.grad((y, last), list(inputs.values()), (torch.ones_like(y), torch.ones_like(last)))
    assert all(torch.allclose(a, b) for a, b in zip(grads, dense, strict=True))


both_backends = pytest.mark.parametrize("backend", ["torch", pytest.param("cpp", marks=needs_kernels)])


@both_backends
def test_inputs_and_block_starts_are_saved_only(backend):
    """Beside results and gradients the state before every block, nothing per step."""
    batch, channels, length, width = 1, 8, 10 * BLOCK, 16
    inputs = make_inputs(batch, channels, length, width, dtype=torch.float32)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        selective_scan(**inputs, delta_softplus=True, backend=backend)
    starts = length // BLOCK * batch * channels * width
    assert sum(saved) <= sum(x.numel() for x in inputs.values()) + starts


def test_the_references_backward_pass_has_linear_cost():
    pending, names = [selective_scan(**make_inputs(1, 2, 12, 2), backend="reference").grad_fn], set()
    while pending:
        node = pending.pop()
        names.add(type(node).__name__)
        pending += [following for following, _ in node.next_functions if following is not None]
    assert "UnbindBackward0" in names
    assert not names & {"SelectBackward0", "IndexBackward0", "SliceBackward0"}  # each fills a whole tensor per step


def test_meta_device_gives_shapes_at_once():
    inputs = {n: x.detach().to("meta") for n, x in make_inputs(1, 4, 2, 3, dtype=torch.float32).items()}
    for name in ("u", "delta", "B", "C", "z"):
        inputs[name] = torch.empty(*inputs[name].shape[:2], 10**6, device="meta")
    y, last = selective_scan(**inputs, delta_softplus=True, return_last_state=True)
    assert y.is_meta and y.shape == (1, 4, 10**6) and last.shape == (1, 4, 3)


def test_operator_is_well_formed():
    inputs = make_inputs(2, 3, 40, 2, dtype=torch.float32)
    arguments = list(ScanInputs(**inputs, delta_softplus=True))
    torch.library.opcheck(blocked_scan, tuple(arguments))
    arguments[1] = arguments[1].detach().abs()  # without softplus
    torch.library.opcheck(blocked_scan, (*arguments[:5], None, None, None, None, False))


@both_backends
def test_compiles_in_one_graph(backend):
    inputs = make_inputs(1, 3, 40, 4, dtype=torch.float32)

    def loss(**values):
        y, last = selective_scan(**values, delta_softplus=True, return_last_state=True, backend=backend)
        return y.square().sum() + last.sum()

    eager = torch.autograd.grad(loss(**inputs), list(inputs.values()))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    grads = torch.autograd.grad(compiled(**inputs), list(inputs.values()))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(grads, eager, strict=True))


def test_default_backends(monkeypatch):
    called, run = [], SCAN_BACKENDS["reference"].run
    for name, backend in list(SCAN_BACKENDS.items()):
        recorded = replace(backend, run=lambda *a, name=name: called.append(name) or run(*a))
        monkeypatch.setitem(SCAN_BACKENDS, name, recorded)
    single, double = (make_inputs(1, 2, 3, 4, dtype=dtype) for dtype in (torch.float32, torch.float64))
    odd_width, one_step = make_inputs(1, 2, 3, 5, dtype=torch.float32), make_inputs(1, 2, 1, 5, dtype=torch.float32)
    monkeypatch.setattr(native, "load_library", lambda: native.Library(None, "AVX2", "no compiler"))
    for inputs in (single, double, odd_width, one_step):
        selective_scan(**inputs, delta_softplus=True)
    assert called == ["torch", "reference", "torch", "reference"]
    called.clear()
    monkeypatch.setattr(native, "load_library", lambda: native.Library(object(), "AVX2", "a file"))
    for inputs in (single, double, odd_width, one_step):
        selective_scan(**inputs, delta_softplus=True)
    assert called == ["cpp", "reference", "torch", "reference"]
    called.clear()
    monkeypatch.setenv("RECURFORMER_SCAN", "reference")
    selective_scan(**single)
    selective_scan(**single, backend="torch")
    assert called == ["reference", "torch"]
    monkeypatch.delenv("RECURFORMER_SCAN")
    load_double(monkeypatch)
    on_gpu = SimpleNamespace(shape=(1, 2, 3), dtype=torch.bfloat16, is_cuda=True, is_meta=False)
    assert scan.choose_backend(on_gpu, single["A"], True, None) == "mamba_ssm"


def test_errors_name_the_argument(monkeypatch):
    inputs = make_inputs(1, 2, 3, 2, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"backend='quick'.*choose one of mamba_ssm.*torch, reference"):
        selective_scan(**inputs, backend="quick")
    with pytest.raises(ValueError, match=r"initial_state has shape \(1, 2, 3\), expected \(1, 2, 2\)"):
        selective_scan(**inputs | {"initial_state": torch.zeros(1, 2, 3)})
    with pytest.raises(ValueError, match="L >= 1"):
        selective_scan(**inputs | {"u": torch.zeros(1, 2, 0)})
    with pytest.raises(ValueError, match="backend='mamba_ssm' cannot run here: mamba-ssm's kernel takes CUDA tensors"):
        selective_scan(**inputs, backend="mamba_ssm")
    monkeypatch.setenv("RECURFORMER_SCAN", "fast")
    with pytest.raises(ValueError, match="RECURFORMER_SCAN='fast'"):
        selective_scan(**inputs)
