"""Checkpoints that carry their own code, for machines without this package."""

from os import PathLike
from typing import Any

from transformers import PreTrainedModel

from .modeling import RecurFormerForCausalLMMixin


def save_with_code(model: PreTrainedModel, directory: str | PathLike[str]) -> None:
    """Save a converted model with the code that it needs.

    `AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True)` then opens it without this package; where
    the package is imported, its own classes are used.

    Args:
        model: a converted model.
        directory: where to write; made if missing.

    Raises:
        ValueError: the model is not a converted language model.
    """
    if not isinstance(model, RecurFormerForCausalLMMixin):
        raise ValueError(f"{type(model).__name__} is not a converted language model: call save_pretrained for it")
    config, language_model = type(model.config), type(model)
    classes: dict[Any, str] = {config: "AutoConfig", language_model: "AutoModelForCausalLM"}
    try:
        for owner, auto_class in classes.items():
            owner._auto_class = auto_class
        model.save_pretrained(directory)
    finally:
        for owner in classes:
            owner._auto_class = None
        model.config.__dict__.pop("auto_map", None)  # later plain saves carry no code and must not claim to
