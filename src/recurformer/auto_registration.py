"""Makes transformers' auto classes know the converted models, once one is asked for, and imports none before.

So `import recurformer` stays light, and `AutoModelForCausalLM.from_pretrained` opens a converted checkpoint after it.
Nothing is imported while the library imports its auto classes: they may be what one of its models waits for that ours
derive from.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _OnDemand(dict[Any, Any]):
    """One of the library's registers of further classes, by model type or by configuration; it imports ours when one of
    them is looked up.
    """

    def __contains__(self, key: object) -> bool:
        if not super().__contains__(key) and str(getattr(key, "model_type", key)).startswith("recurformer_"):
            import_module("recurformer.model.modeling")  # registers all of them
        return super().__contains__(key)


def _expect(*mappings: Any) -> None:
    for mapping in mappings:
        mapping._extra_content = _OnDemand(mapping._extra_content)


REGISTER: dict[str, Callable[[ModuleType], None]] = {
    "transformers.models.auto.configuration_auto": lambda module: _expect(module.CONFIG_MAPPING),
    "transformers.models.auto.modeling_auto": lambda module: _expect(
        module.MODEL_MAPPING, module.MODEL_FOR_CAUSAL_LM_MAPPING
    ),
}
"""Module of the library -> what to do once it is imported."""


class _RegisteringLoader(Loader):
    """The library's own loader, then the registration."""

    def __init__(self, loader: Loader):
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the library's loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Import, then register."""
        self.loader.exec_module(module)
        REGISTER[module.__name__](module)


class _Finder(MetaPathFinder):
    """Waits for the library's two modules."""

    def __init__(self) -> None:
        self.waiting = set(REGISTER)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one of the two by the ordinary finders and put the registration behind its loader."""
        if fullname not in self.waiting:
            return None
        self.waiting.remove(fullname)  # so that the search below goes on to the ordinary finders
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


def register_on_import() -> None:
    """Register now with what is there, and with the rest when it comes."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name, register in REGISTER.items():
        if name in sys.modules:
            register(sys.modules[name])
