"""The Triton kernels: run by the interpreter on a CPU, compiled ahead for GPUs that are not there, compared on one."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from scan_cases import compare, definition, deviation, make_inputs

from recurformer.model import scan_triton
from recurformer.model.scan import choose_backend, selective_scan
from recurformer.model.scan_inputs import ScanInputs
from recurformer.model.scan_triton_backward import gradients, segment_adjoints
from recurformer.model.scan_triton_carry import carry
from recurformer.model.scan_triton_forward import outputs, segment_ends
from recurformer.model.scan_triton_launch import AHEAD, CHUNK, WARP, divide, settings

needs_triton = pytest.mark.skipif(scan_triton.triton is None, reason="needs Triton")
needs_gpu = pytest.mark.skipif(
    scan_triton.triton is None or not torch.cuda.is_available(), reason="needs Triton and a CUDA device"
)

SEQUENCES = {"u", "delta", "z", "grad_y"}
PROJECTIONS = {"B", "C"}
RESULTS = {"y", "du", "ddelta", "dz"}
SIZES = re.compile("channels|length|segments|chunks|slots|spacing|.*_chunks")
KERNELS = [
    (segment_ends, settings(16, True)),
    (outputs, settings(16, True)),
    (segment_ends, settings(64, True)),
    (outputs, settings(64, True)),
    (segment_adjoints, settings(16, True)),
    (gradients, settings(16, True)),
    (carry, {"WIDTH": 16, "REVERSE": True, "AHEAD": AHEAD} | WARP),
]


@needs_triton
def test_kernels_in_the_interpreter():
    """Triton decides at its import whether to interpret, hence another process."""
    cases = Path(__file__).with_name("triton_interpreted.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs", str(cases)]
    run = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    if run.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        pytest.skip(run.stdout[run.stdout.find("SKIPPED") :])
    assert run.returncode == 0, run.stdout[-8000:]


def argument_type(name, dtype):
    if SIZES.fullmatch(name):
        return "i32"
    if name in SEQUENCES:
        return (f"*{dtype}", "i32", "i32")
    if name in PROJECTIONS:
        return ("*fp32", "i32", "i32")
    return f"*{dtype}" if name in RESULTS else "*fp32"


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("kernel", "compiled_for"), KERNELS, ids=lambda x: getattr(x, "__name__", None))
def test_kernels_compile_without_spills(kernel, compiled_for, capability, dtype, tmp_path):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {name: value for name, value in compiled_for.items() if name.isupper()}
    options = {name: value for name, value in compiled_for.items() if name.islower()}
    types = {n: "constexpr" if n in constants else argument_type(n, dtype) for n in kernel.arg_names}
    source = ASTSource(kernel, types, {(kernel.arg_names.index(n),): value for n, value in constants.items()})
    binary = tmp_path / "kernel.cubin"
    binary.write_bytes(triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"])
    command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(binary)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.search(r"REG:\d+ STACK:0 .*LOCAL:0 ", usage.stdout + usage.stderr), usage.stdout + usage.stderr


def test_without_triton_or_gpu_the_reason_is_given(monkeypatch):
    inputs = make_inputs(1, 2, 3, 4, dtype=torch.float32)
    u, A = inputs["u"], inputs["A"]
    monkeypatch.setattr(scan_triton, "triton", None)
    assert scan_triton.unusable() == "Triton is not installed"
    with pytest.raises(ValueError, match="backend='triton' cannot run here: Triton is not installed"):
        selective_scan(**inputs, backend="triton")
    monkeypatch.setattr(scan_triton, "triton", object())
    monkeypatch.setattr(scan_triton, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert scan_triton.refuses(u, A, True).endswith("the input is on cpu")
    on_gpu = SimpleNamespace(
        is_cuda=True, is_meta=False, dtype=torch.bfloat16, shape=u.shape, device=torch.device("cuda:0")
    )
    assert scan_triton.refuses(on_gpu, A, True) is None
    assert choose_backend(on_gpu, A, True) == "triton"  # mamba-ssm is not installed here
    assert "N=3" in scan_triton.refuses(on_gpu, A[:, :3], True)


def test_shapes_need_no_triton():
    inputs = {name: x.detach().to("meta") for name, x in make_inputs(2, 3, 70, 4, dtype=torch.bfloat16).items()}
    y, last, starts = scan_triton.segmented_scan(*ScanInputs(**inputs, delta_softplus=True))
    assert (y.shape, y.dtype, last.shape, last.dtype) == ((2, 3, 70), torch.bfloat16, (2, 3, 4), torch.float32)
    assert starts.shape == (2, 3, 4, 3)


@pytest.mark.parametrize(
    "case", [(1, 1152, 1024, 16), (8, 4096, 2048, 16), (1, 8, 1, 4), (3, 5, 97, 64), (1, 4096, 100_000, 16)], ids=str
)
def test_segments_cover_the_sequence(case):
    batch, channels, length, width = case
    blocks, chunks, segment_chunks, segments = divide(batch, channels, length, width, 2048)
    assert blocks * (32 * min(width, 16) // width) >= channels and chunks * CHUNK >= length
    assert (segments - 1) * segment_chunks < chunks <= segments * segment_chunks
    assert segments == 1 or segments * blocks * batch <= 2048


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    "shape", [(1, 1152, 1024, 16), (2, 100, 333, 4), (1, 64, 2000, 64), (4, 2048, 65, 16)], ids=str
)
def test_kernels_on_a_gpu(shape, monkeypatch):
    inputs = {n: x.detach().cuda().requires_grad_() for n, x in make_inputs(*shape, dtype=torch.float32).items()}
    compare(inputs, "triton", tolerance=2e-5)
    lower = {name: x.detach().bfloat16() for name, x in inputs.items()} | {"A": inputs["A"]}
    y = selective_scan(**lower, delta_softplus=True, backend="triton")
    assert deviation(y, definition(**lower, delta_softplus=True)[0]) < 1e-2


@pytest.mark.gpu
@needs_gpu
def test_two_runs_on_a_gpu_give_the_same_bits(monkeypatch):
    inputs = {n: x.detach().cuda().requires_grad_() for n, x in make_inputs(2, 300, 500, 16, torch.float32).items()}

    def results():
        y = selective_scan(**inputs, delta_softplus=True, backend="triton")
        return y, *torch.autograd.grad(y.square().sum(), list(inputs.values()))

    assert all(torch.equal(a, b) for a, b in zip(results(), results(), strict=True))
