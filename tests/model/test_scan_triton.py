"""The Triton kernels: run by the interpreter on a CPU, compiled ahead for GPUs that are not there, compared on one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scan_cases import compare, definition, deviation, make_inputs

from recurformer.model import scan_triton
from recurformer.model.scan import selective_scan
from recurformer.model.scan_inputs import ScanInputs
from recurformer.model.scan_triton import AHEAD, LANES, carry, gradients, scan_chunks, settings

needs_triton = pytest.mark.skipif(scan_triton.triton is None, reason="needs Triton")
needs_gpu = pytest.mark.skipif(
    scan_triton.triton is None or not torch.cuda.is_available(), reason="needs Triton and a CUDA device"
)

SEQUENCES = {"u", "delta", "z", "grad_y", "B", "C"}
RESULTS = {"y", "du", "ddelta", "dz"}
SIZES = ("channels", "length", "chunks")
KERNELS = [
    (kernel, settings(width, True) | extra)
    for width in (4, 16, 64)
    for kernel, extra in ((scan_chunks, {"OUTPUTS": False}), (scan_chunks, {"OUTPUTS": True}), (gradients, {}))
] + [(carry, {"WIDTH": 16, "LANES": LANES, "AHEAD": AHEAD})]


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
    if name in SIZES:
        return "i32"
    if name in SEQUENCES:
        return (f"*{dtype}", "i32", "i32")
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


def test_a_tensor_that_the_kernels_cannot_take_is_refused(monkeypatch):
    inputs = make_inputs(1, 2, 3, 4, dtype=torch.float32)
    monkeypatch.setattr(scan_triton, "triton", None)
    with pytest.raises(ValueError, match="backend='triton' cannot run here: Triton is not installed"):
        selective_scan(**inputs, backend="triton")
    monkeypatch.setattr(scan_triton, "triton", object())
    monkeypatch.setattr(scan_triton, "INTERPRETED", True)
    assert scan_triton.refuses(inputs["u"], inputs["A"], True) is None
    assert "N=3" in scan_triton.refuses(inputs["u"], inputs["A"][:, :3], True)
    assert "float64" in scan_triton.refuses(inputs["u"].double(), inputs["A"], True)


def test_shapes_need_no_triton():
    inputs = {name: x.detach().to("meta") for name, x in make_inputs(2, 3, 70, 4, dtype=torch.bfloat16).items()}
    y, last, starts = scan_triton.chunked_scan(*ScanInputs(**inputs, delta_softplus=True))
    assert (y.shape, y.dtype, last.shape, last.dtype) == ((2, 3, 70), torch.bfloat16, (2, 3, 4), torch.float32)
    assert starts.shape == (2, 3, 3, 4)


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
