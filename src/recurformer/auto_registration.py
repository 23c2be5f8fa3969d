"""Registers the converted models with transformers' auto classes as soon as those are imported, and not before.

So `import recurformer` stays light, and `AutoModelForCausalLM.from_pretrained` opens a converted checkpoint after it.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

AUTO_CLASSES = "transformers.models.auto.modeling_auto"
MODELING = "recurformer.model.modeling"


class _RegisteringLoader(Loader):
    """The library's own loader, then the registration."""

    def __init__(self, loader: Loader):
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        import_module(MODELING)


class _Finder(MetaPathFinder):
    """Waits for one module and steps aside."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != AUTO_CLASSES:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


def register_on_import() -> None:
    """Register now when the auto classes are there, else when they come."""
    if AUTO_CLASSES in sys.modules:
        import_module(MODELING)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
