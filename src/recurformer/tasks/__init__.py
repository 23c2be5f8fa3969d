"""The tasks: how samples of each are made, and how answers are scored."""

IGNORED = -100
"""The label of a position where nothing is asked: PyTorch's cross-entropy, and so every loss here, leaves it out."""
