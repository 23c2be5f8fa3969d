"""Pretrained Transformers before conversion, from wherever they come: each source gives (model, tokenizer or None)."""

from recurformer.backbones.hub import open_hub
from recurformer.backbones.random import make_random, open_random
from recurformer.backbones.shapes import load_shape, meta_model, random_model
from recurformer.backbones.store import load_backbone, save_backbone
from recurformer.backbones.wheel import open_wheel

__all__ = [
    "load_backbone",
    "load_shape",
    "make_random",
    "meta_model",
    "open_hub",
    "open_random",
    "open_wheel",
    "random_model",
    "save_backbone",
]
