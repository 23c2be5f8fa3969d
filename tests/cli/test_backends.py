"""`recurformer backends`: what there is, what is used, and what the environment forces."""

import sys

import pytest
import torch

from recurformer.cli.main import main
from recurformer.model import native, scan_cuda
from recurformer.model.scan import SCAN_BACKENDS


def test_every_backend_is_listed_with_what_runs_by_default(capsys, monkeypatch):
    monkeypatch.delenv("RECURFORMER_SCAN", raising=False)
    monkeypatch.setattr(native, "load_library", lambda: native.Library(None, "AVX2", "no C++ compiler"))
    assert main(["backends"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in SCAN_BACKENDS)
    assert "cpp        our C++ kernel for the CPU: no C++ kernels: no C++ compiler" in shown
    assert "float32 inputs: torch" in shown and "float64 inputs: reference" in shown
    assert "RECURFORMER_SCAN: not set" in shown and "AVX2: no C++ compiler" in shown


@pytest.mark.parametrize(
    ("forced", "said"),
    [
        ("reference", "float64 inputs: reference"),
        ("cpp", "float64 inputs: refused, environment variable RECURFORMER_SCAN='cpp' cannot run here"),
        ("fast", "float32 inputs: refused, environment variable RECURFORMER_SCAN='fast' is no scan backend; choose"),
    ],
)
def test_the_environment_forces_one(capsys, monkeypatch, forced, said):
    monkeypatch.setenv("RECURFORMER_SCAN", forced)
    assert main(["backends"]) == 0
    shown = capsys.readouterr().out
    assert said in shown and f"RECURFORMER_SCAN: {forced}" in shown


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "mamba-ssm is not installed"),
        ({"mamba_ssm.py": ""}, "mamba-ssm is installed without selective_scan_cuda"),
        ({"selective_scan_cuda.py": "raise ImportError('no libcudart')"}, "cannot be loaded (ImportError: "),
        ({"selective_scan_cuda.py": "fwd = bwd = print"}, "compiled, selective_scan_cuda"),
    ],
)
def test_why_the_kernel_of_mamba_ssm_is_not_used(capsys, monkeypatch, tmp_path, files, reason):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, scan_cuda.COMPILED, None)  # what is imported here is forgotten at the end
    monkeypatch.delitem(sys.modules, scan_cuda.COMPILED)
    monkeypatch.setattr(scan_cuda, "load_extension", scan_cuda.load_extension.__wrapped__)
    assert main(["backends"]) == 0
    (said,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("mamba-ssm's CUDA kernel: "))
    assert reason in said and said.endswith("; there is no CUDA device")
