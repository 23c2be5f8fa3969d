"""Names of models: as the measurements have them, and as a reader sees them."""

BACKBONE_LABELS = {
    "qwen2-0.5b": "Qwen2-0.5B",
    "llama2-7b": "Llama2-7B",
    "qwen2-7b": "Qwen2-7B",
}
"""The paper's three backbones in the order of its tables: name in the measurements -> name in print."""

OTHER_LABELS = {
    "smollm2-135m": "SmolLM2-135M",
    "hashhop-llama": "HashHop-Llama",
    "hashhop-qwen2": "HashHop-Qwen2",
}
"""Models of the suite's own studies; any other model is shown by its name."""


def label(model: str) -> str:
    """The printed name of a model.

    >>> label("llama2-7b"), label("another")
    ('Llama2-7B', 'another')
    """
    return {**BACKBONE_LABELS, **OTHER_LABELS}.get(model, model)
