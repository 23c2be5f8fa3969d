"""Makes transformers' auto classes know the converted models, once one is asked for, and imports none before.

So `import recurformer` stays light, and `AutoModelForCausalLM.from_pretrained` opens a converted checkpoint after it.
Nothing is imported while the library imports its auto classes: they may be what one of its models waits for that ours
derive from.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

from wrapt import register_post_import_hook

REGISTERS = {
    "transformers.models.auto.configuration_auto": ["CONFIG_MAPPING"],
    "transformers.models.auto.modeling_auto": ["MODEL_MAPPING", "MODEL_FOR_CAUSAL_LM_MAPPING"],
}
"""Module of the library -> its registers of classes."""


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


def register_on_import() -> None:
    """Register now with what is there, and with the rest when it comes."""
    for name in REGISTERS:
        register_post_import_hook(_expect, name)
