"""`recurformer backends`: what there is, what is used, and what the environment forces."""

import pytest

from recurformer.cli.main import main
from recurformer.model import native
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
