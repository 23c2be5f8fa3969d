"""Let a model attend by another function of transformers' attention interface, for a while."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.nn import Module
from transformers import PreTrainedModel

UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments of an attention function that change the weights in ways no function here knows."""


def refuse(module: Module, arguments: Mapping[str, Any], reason: str, *more: str) -> None:
    """Check the arguments that transformers hands to an attention function.

    Raises:
        ValueError: one of `UNSUPPORTED` or `more` is given; `reason` ends the sentence.
    """
    strange = [name for name in (*UNSUPPORTED, *more) if arguments.get(name) is not None]
    if strange:
        raise ValueError(f"{type(module).__name__} attends with {strange[0]}, {reason}")


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
