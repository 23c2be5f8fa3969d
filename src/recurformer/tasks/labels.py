"""The label of a position where nothing is asked."""

IGNORED = -100  # what PyTorch's cross-entropy leaves out by default, and so the losses of transformers
