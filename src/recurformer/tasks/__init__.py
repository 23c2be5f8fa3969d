"""The tasks: samples of each, and scores of answers."""

IGNORED = -100
"""The label of a position without a target: PyTorch's cross-entropy, and so every loss here, leaves it out."""
