"""Pretrained Transformers before conversion, from wherever they come: each source gives (model, tokenizer or None)."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recurformer.backbones.hub import open_hub
from recurformer.backbones.random import make_random, open_random
from recurformer.backbones.shapes import SHAPES, load_shape, meta_model, open_shape, random_model
from recurformer.backbones.store import load_backbone, save_backbone
from recurformer.backbones.wheel import open_wheel

Backbone = tuple[PreTrainedModel, PreTrainedTokenizerBase | None]

__all__ = [
    "BACKBONE_SOURCES",
    "SHAPES",
    "Backbone",
    "load_backbone",
    "load_shape",
    "make_random",
    "meta_model",
    "open_backbone",
    "open_hub",
    "open_random",
    "open_shape",
    "open_wheel",
    "random_model",
    "save_backbone",
]

# A new source is one function with keyword arguments and one line here.
BACKBONE_SOURCES: dict[str, Callable[..., Any]] = {
    "wheel": open_wheel,
    "shape": open_shape,
    "random": open_random,
    "hub": open_hub,
    "directory": load_backbone,
}


def open_backbone(settings: Mapping[str, Any]) -> Backbone:
    """Model and tokenizer from `source`, a name in BACKBONE_SOURCES, with the other settings as its arguments.

    Raises:
        ValueError: an unknown source, or settings that it does not take or lacks.
        ResourceError: (a ValueError) a file of the source is missing or corrupt.
    """
    arguments = dict(settings)
    source = arguments.pop("source", None)
    if source not in BACKBONE_SOURCES:
        raise ValueError(f"backbone source is {source!r}; choose one of {', '.join(BACKBONE_SOURCES)}")
    opener = BACKBONE_SOURCES[source]
    try:
        inspect.signature(opener).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"backbone source {source!r}: {error}") from error
    return opener(**arguments)
