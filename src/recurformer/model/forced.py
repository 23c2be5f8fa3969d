"""The implementation of the Mamba block's recurrent parts that the environment forces."""

import os

ENVIRONMENT_VARIABLE = "RECURFORMER_SCAN"


def forced() -> str | None:
    """Return the name that the environment forces, or None."""
    return os.environ.get(ENVIRONMENT_VARIABLE) or None


def allowed(*names: str) -> bool:
    """Return whether one of these implementations may run: nothing is forced, or one of them is."""
    return forced() in (None, *names)
