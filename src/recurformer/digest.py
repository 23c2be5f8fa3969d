"""A digest of the code that a module really uses, so that a workflow runs again what an edit affects and nothing else.

It covers the module and all modules of this package that it imports, directly or not, at the top or inside functions.
Comments, docstrings and formatting do not count, nor does the version of Python. A data file counts for the modules
that name it or its folder. Code that no module imports by name is not seen.
"""

import ast
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

PACKAGE = "recurformer"
ROOT = Path(__file__).parent
DATA = (".yaml", ".mplstyle", ".j2", ".css", ".js", ".cpp", ".h")
PLUMBING = frozenset({"study", "records", "files", "digest", "tracking", "cli.main", "cli.launch", "cli.arguments"})
"""Modules (and what lies in them) that carry settings and files but compute nothing: settings are tracked as params."""


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


@cache
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
    return {name for name in found if name.startswith(f"{PACKAGE}.") and not _is_plumbing(name)}


def _is_plumbing(module: str) -> bool:
    inner = module.removeprefix(f"{PACKAGE}.")
    return any(inner == name or inner.startswith(f"{name}.") for name in PLUMBING)


def _dump(node: object) -> str:
    """A syntax tree as text. `ast.dump` shows empty fields, and newer versions of Python have more of them."""
    if isinstance(node, ast.AST):
        fields = [f"{name}={_dump(value)}" for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f"{type(node).__name__}({', '.join(fields)})"
    return f"[{', '.join(map(_dump, node))}]" if isinstance(node, list) else repr(node)


def _data(path: Path) -> Iterator[Path]:
    """Data files beside a module that it names, or whose folder it names."""
    named = {node.value for node in ast.walk(_tree(path)) if isinstance(node, ast.Constant)}
    for file in sorted(path.parent.rglob("*")):
        if file.suffix in DATA and named.intersection(file.relative_to(path.parent).parts):
            yield file


@cache
def _content(path: Path) -> bytes:
    """What counts of a module: its code and its data files. Most stages share most modules."""
    return _dump(_tree(path)).encode() + b"\n" + b"".join(file.read_bytes() for file in _data(path))


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


@cache
def code_digest(module: str) -> str:
    """Sixteen hexadecimal digits that change when the code used by `module` does."""
    digest = sha256()
    for name, path in sorted(modules_used(module).items()):
        digest.update(f"{name}\n".encode() + _content(path))
    return digest.hexdigest()[:16]
