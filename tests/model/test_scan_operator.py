"""The selective scan as an operator of torch: costs, shapes, compilation, choice of a backend, errors."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from scan_cases import load_double, make_inputs

from recurformer.model import native, scan
from recurformer.model.scan import SCAN_BACKENDS, selective_scan
from recurformer.model.scan_inputs import ScanInputs
from recurformer.model.scan_torch import BLOCK, blocked_scan

needs_kernels = pytest.mark.skipif(native.refuses() is not None, reason="needs the C++ kernels")
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


def test_reference_backward_has_linear_cost():
    inputs = make_inputs(1, 2, 12, 2)
    pending, names = [selective_scan(**inputs, backend="reference").grad_fn], set()
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
    start = time.perf_counter()
    y, last = selective_scan(**inputs, delta_softplus=True, return_last_state=True)
    assert time.perf_counter() - start < 1
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
    selective_scan(**single)  # without softplus
    assert called == ["cpp", "reference", "torch", "reference", "torch"]
    called.clear()
    monkeypatch.setenv("RECURFORMER_SCAN", "reference")
    selective_scan(**single)
    selective_scan(**single, backend="torch")
    assert called == ["reference", "torch"]
    monkeypatch.delenv("RECURFORMER_SCAN")
    load_double(monkeypatch, "hub")
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
