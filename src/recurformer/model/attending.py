"""Let a model attend by another function of transformers' attention interface, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

UNSUPPORTED = ("softcap", "s_aux", "position_bias")  # arguments that change the weights in ways no function here knows


@contextmanager
def attending_by(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Inside, the model attends by the function of this name; afterwards by its own again, also after an error.

    Raises:
        ValueError: the model does not attend through transformers' attention interface.
    """
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(implementation)
        if model.config._attn_implementation != implementation:
            raise ValueError(f"{type(model).__name__} does not attend through transformers' attention interface")
        yield
    finally:
        model.set_attn_implementation(before)
