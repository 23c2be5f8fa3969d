"""Which implementation of the Mamba block's recurrent parts the environment asks for."""

import os

import torch

ENVIRONMENT_VARIABLE = "RECURFORMER_SCAN"


def forced() -> str | None:
    """Return the name that the environment forces, or None; an ONNX export has room for the definition alone."""
    tracing = torch.compiler.is_exporting() or torch.jit.is_tracing()  # asked first: it costs nothing
    return os.environ.get(ENVIRONMENT_VARIABLE) or ("reference" if tracing and torch.onnx.is_in_onnx_export() else None)


def allowed(*names: str) -> bool:
    """Return whether one of these implementations may run: nothing is forced, or one of them is."""
    return forced() in (None, *names)
