"""A digest of the code that a module really uses, so that a workflow runs again what an edit affects and nothing else.

It covers the module and all modules of this package that it imports, directly or not, at the top or inside functions.
Comments, docstrings and formatting do not count. Code that no module imports by name is not seen.
"""

import ast
from functools import cache
from hashlib import sha256
from pathlib import Path

PACKAGE = "recurformer"
ROOT = Path(__file__).parent
DATA = (".yaml", ".mplstyle")
"""Data files count too, for the modules that lie beside them."""
PLUMBING = frozenset({"study", "records", "files", "digest", "cli.main", "cli.arguments"})
"""Modules that carry settings and files but compute nothing: settings are tracked as params."""


def _find(module: str) -> Path | None:
    """The file of a module of this package, found without importing anything."""
    base = ROOT.joinpath(*module.split(".")[1:])
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


@cache
def _tree(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(
            body, list
        ):
            kept = [part for part in body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
            node.body = kept or [ast.Pass()]
    return tree


def _imports(module: str, path: Path) -> set[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                parent = ".".join([*above, *([node.module] if node.module else [])])
            found.add(parent)
            found.update(f"{parent}.{alias.name}" for alias in node.names)
    plumbing = {f"{PACKAGE}.{name}" for name in PLUMBING} | {PACKAGE}
    return {name for name in found if name.startswith(f"{PACKAGE}.") and name not in plumbing}


def modules_used(module: str) -> dict[str, Path]:
    """`module` and all modules of the package that it imports, with their files.

    Raises:
        ValueError: there is no such module.
    """
    if _find(module) is None:
        raise ValueError(f"{module}: no such module")
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _find(name)  # None for `from module import function`, which names a function as if it were a module
        if path is None or name in found or name == PACKAGE:
            continue
        found[name] = path
        waiting.extend({*_imports(name, path), name.rpartition(".")[0]})
    return found


def code_digest(module: str) -> str:
    """Sixteen hexadecimal digits that change when the code used by `module` does."""
    digest = sha256()
    used = modules_used(module)
    for name, path in sorted(used.items()):
        digest.update(f"{name}\n{ast.dump(_tree(path))}\n".encode())
    for folder in sorted({path.parent for path in used.values()}):
        for path in sorted(path for path in folder.rglob("*") if path.suffix in DATA):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
