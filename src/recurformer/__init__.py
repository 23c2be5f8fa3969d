"""RecurFormer: replace recency-aware attention heads by Mamba blocks (arXiv 2410.12850), an independent replication.

Importing the package is light: torch is loaded by the first name that needs it. It also sees to it that transformers'
auto classes know the converted models, so `AutoModelForCausalLM.from_pretrained` opens a converted checkpoint.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

from wrapt import register_post_import_hook

_PUBLIC = {
    "HeadProfile": "recurformer.heads.profile",
    "profile_heads": "recurformer.heads.profile",
    "select_heads": "recurformer.heads.select",
    "allocate": "recurformer.heads.price",
    "choices": "recurformer.heads.price",
    "key_centers": "recurformer.heads.price",
    "price": "recurformer.heads.price",
    "windows_by_group": "recurformer.heads.price",
    "convert": "recurformer.model.convert",
    "save_with_code": "recurformer.model.convert",
    "as_stock": "recurformer.model.stock",
    "adapt": "recurformer.recover.adapt",
    "calibrate": "recurformer.recover.calibrate",
    "transfer": "recurformer.recover.learn",
    "distil": "recurformer.recover.learn",
    "folded": "recurformer.model.fused",
    "prefill": "recurformer.model.prefill",
    "selective_scan": "recurformer.model.scan",
}

__all__ = list(_PUBLIC)
__version__ = "0.1.0"


def __getattr__(name: str):
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'recurformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])


REGISTERS = {
    "transformers.models.auto.configuration_auto": ["CONFIG_MAPPING"],
    "transformers.models.auto.modeling_auto": ["MODEL_MAPPING", "MODEL_FOR_CAUSAL_LM_MAPPING"],
}
"""Module of transformers -> its registers of classes."""


class _OnDemand(dict[Any, Any]):
    """A register's further classes, by model type or configuration; imports ours when one of them is looked up."""

    def __contains__(self, key: object) -> bool:
        if not super().__contains__(key) and str(getattr(key, "model_type", key)).startswith("recurformer_"):
            import_module("recurformer.model.modeling")  # registers all of them
        return super().__contains__(key)


def _expect(module: ModuleType) -> None:
    for name in REGISTERS[module.__name__]:
        register = getattr(module, name)
        register._extra_content = _OnDemand(register._extra_content)


# Nothing is imported while the library imports its auto classes: they may be what one of its models waits for that ours
# derive from.
for _module in REGISTERS:
    register_post_import_hook(_expect, _module)
