"""Parameter counts by kind of module, for models on any device."""

import pandas as pd
from torch import nn

# The first kind whose mark is part of a parameter's dotted name. A Mamba block lives inside the attention module.
MARKS = {
    "mamba": ("mamba",),
    "attention": ("self_attn",),
    "mlp": ("mlp",),
    "norm": ("norm", "input_layernorm", "post_attention_layernorm"),
    "embedding": ("embed_tokens",),
    "head": ("lm_head",),
}
KINDS = tuple(MARKS)


def parameter_kind(name: str) -> str:
    """Name the kind of the parameter with this dotted name.

    Raises:
        ValueError: no kind fits.
    """
    parts = set(name.split("."))
    for kind, marks in MARKS.items():
        if parts.intersection(marks):
            return kind
    raise ValueError(f"parameter {name!r} is of no known kind ({', '.join(KINDS)})")


def count_parameters(model: nn.Module) -> pd.DataFrame:
    """Count parameters: one row for each kind (kind, parameters), also for kinds that the model lacks.

    A tied language-model head shares the embedding's parameters and counts as 0.

    Raises:
        ValueError: a parameter whose kind is unknown.
    """
    counts = dict.fromkeys(KINDS, 0)
    for name, parameter in model.named_parameters():  # each shared parameter once, under its first name
        counts[parameter_kind(name)] += parameter.numel()
    return pd.DataFrame({"kind": list(counts), "parameters": list(counts.values())})
