"""The inputs of models: texts, tasks with their samples and scores, and pretrained backbones."""

IGNORED = -100
"""The label of a position without a target: PyTorch's cross-entropy, and so every loss here, leaves it out."""
