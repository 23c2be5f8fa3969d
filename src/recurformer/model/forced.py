"""The implementation of the Mamba block's recurrent parts that the environment forces."""

import os

import torch

ENVIRONMENT_VARIABLE = "RECURFORMER_SCAN"


def forced() -> str | None:
    """Return the name that the environment forces, or None; an ONNX export has room for the definition alone."""
    tracing = torch.compiler.is_exporting() or torch.jit.is_tracing()  # first, because it costs nothing
    return os.environ.get(ENVIRONMENT_VARIABLE) or ("reference" if tracing and torch.onnx.is_in_onnx_export() else None)


def allowed(*names: str) -> bool:
    """Return whether one of these implementations may run: nothing is forced, or one of them is."""
    return forced() in (None, *names)
