"""Makes transformers' auto classes know the converted models as soon as those classes are imported, and not before.

So `import recurformer` stays light, and `AutoModelForCausalLM.from_pretrained` opens a converted checkpoint after it.
The configurations wait one step longer, until one is asked for: while the library imports its auto classes, it cannot
yet import what a configuration of ours derives from.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _ConfigurationsOnDemand(dict[str, Any]):
    """The library's register of further configurations; it imports ours when one of them is looked up."""

    def __contains__(self, model_type: object) -> bool:
        if not super().__contains__(model_type) and str(model_type).startswith("recurformer_"):
            import_module("recurformer.model.modeling")  # registers all of them
        return super().__contains__(model_type)


def _register_configurations(module: ModuleType) -> None:
    mapping = module.CONFIG_MAPPING
    mapping._extra_content = _ConfigurationsOnDemand(mapping._extra_content)


def _register_models(module: ModuleType) -> None:
    import_module("recurformer.model.modeling")


REGISTER: dict[str, Callable[[ModuleType], None]] = {
    "transformers.models.auto.configuration_auto": _register_configurations,
    "transformers.models.auto.modeling_auto": _register_models,
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
