"""A digest of the code that a stage really uses, so that a workflow runs again what an edit affects and nothing else.

It starts at one function. Of the command's own modules, which hold many stages each, it covers the functions, classes
and constants that this one names, directly or not; of all others that they import, at the top or inside functions, it
covers the whole module. Comments, docstrings and formatting do not count, nor does the version of Python. A data file
counts for the modules that name it or its folder. Code that nothing imports or names is not seen.
"""

import ast
from collections.abc import Collection, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from symtable import SymbolTable, symtable

PACKAGE = "recurformer"
ROOT = Path(__file__).parent
DATA = (".yaml", ".mplstyle", ".j2", ".css", ".js", ".cpp", ".h")
STAGE_MODULES = f"{PACKAGE}.cli"
PLUMBING = frozenset(
    {"study", "records", "files", "digest", "tracking", "train.trackers"}
    | {f"cli.{name}" for name in ("main", "launch", "arguments", "stage", "metrics")}
)
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


def _imported(module: str, path: Path, node: ast.AST) -> Iterator[tuple[str, str]]:
    """(name that it binds, what it is) of every import in a part of a module."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            yield from ((alias.asname or alias.name.partition(".")[0], alias.name) for alias in part.names)
        elif isinstance(part, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - part.level + 1] if part.level else []
            parent = ".".join([*above, *([part.module] if part.module else [])])
            yield from ((alias.asname or alias.name, f"{parent}:{alias.name}") for alias in part.names)


def _place(imported: str) -> str | None:
    """The part of an import that counts: a name in a module of stages, else a module; None outside of this package."""
    parent, _, name = imported.partition(":")
    if not parent.startswith(f"{PACKAGE}.") and parent != PACKAGE:
        return None
    module = f"{parent}.{name}" if name and _find(f"{parent}.{name}") else parent
    if module == PACKAGE or _is_plumbing(module):
        return None
    return imported if module == parent and module.startswith(f"{STAGE_MODULES}.") else module


@cache
def _names(path: Path) -> dict[str, ast.stmt]:
    """The statement at the top of a module that gives each name its value."""
    found: dict[str, ast.stmt] = {}
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(dict.fromkeys((alias.asname or alias.name.partition(".")[0] for alias in node.names), node))
        elif not isinstance(node, ast.If):  # which guards what only types need
            names = (part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
            found.update((part.id, node) for part in names)
    return found


def _globals(table: SymbolTable) -> Iterator[str]:
    yield from (symbol.get_name() for symbol in table.get_symbols() if symbol.is_global())
    for inner in table.get_children():
        yield from _globals(inner)


def _named(path: Path, node: ast.stmt) -> set[str]:
    """Names at the top of a module that a statement there uses; a function's own names are none of them."""
    outside: list[ast.AST] = [node]
    found = set()
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        scopes = symtable(path.read_text(encoding="utf-8"), str(path), "exec").get_children()
        found = {name for scope in scopes if scope.get_name() == node.name for name in _globals(scope)}
        outside = [*node.decorator_list, *([node.args] if isinstance(node, ast.FunctionDef) else node.bases)]
    found.update(part.id for root in outside for part in ast.walk(root) if isinstance(part, ast.Name))
    return found & _names(path).keys()


@cache
def _used_by(place: str) -> tuple[frozenset[str], bytes]:
    """The places that a place uses, and what counts of its own code."""
    module, _, name = place.partition(":")
    path = _find(module)
    if path is None:
        raise ValueError(f"{module}: no such module")
    if not name:
        imported = {found for _, found in _imported(module, path, _tree(path))}
        parents = {module.rpartition(".")[0]} - {PACKAGE}
        return frozenset({*filter(None, map(_place, imported)), *parents}), _content(path)
    if name not in _names(path):
        raise ValueError(f"{place}: no such name in the module")
    node = _names(path)[name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        found = _place(dict(_imported(module, path, node))[name])
        return frozenset({found} if found else {}), b""
    imported = {found for _, found in _imported(module, path, node)}
    named = {f"{module}:{other}" for other in _named(path, node) - {name}}
    return frozenset({*named, *filter(None, map(_place, imported))}), _dump(node).encode()


def imported_by_stage(place: str, rooms: Collection[str]) -> Iterator[tuple[Path, int, str]]:
    """File, line and name of the functions and registries of some folders that a stage imports."""
    module, _, name = place.partition(":")
    path = _find(module)
    if path is None or name not in _names(path):
        return
    for _, imported in _imported(module, path, _names(path)[name]):
        parent, _, attribute = imported.partition(":")
        file = _find(parent)
        if file is not None and parent.split(".")[1:2] and parent.split(".")[1] in rooms:
            node = _names(file).get(attribute)
            if isinstance(node, ast.FunctionDef | ast.Assign | ast.AnnAssign):
                yield file, node.lineno, attribute


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
    """The content of a module that counts: its code and its data files. Most stages share most modules."""
    return _dump(_tree(path)).encode() + b"\n" + b"".join(file.read_bytes() for file in _data(path))


@cache
def code_used(place: str) -> dict[str, bytes]:
    """A place (`module` or `module:name`) and all that it uses, with what counts of its code.

    Raises:
        ValueError: there is no such module or name.
    """
    found: dict[str, bytes] = {}
    waiting = [place]
    while waiting:
        if (one := waiting.pop()) not in found:
            used, found[one] = _used_by(one)
            waiting.extend(used)
    return found


@cache
def code_digest(place: str) -> str:
    """Sixteen hexadecimal digits that change when the code used by a place (`module` or `module:name`) does."""
    digest = sha256()
    for name, content in sorted(code_used(place).items()):
        digest.update(f"{name}\n".encode() + content)
    return digest.hexdigest()[:16]


@cache
def folder_digest(*folders: Path) -> str:
    """As `code_digest`, of all modules in folders beside the package, and of what they use of it."""
    from recurformer import _PUBLIC

    digest = sha256()
    used: dict[str, bytes] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{path.relative_to(folder)}\n".encode() + _content(path))
            for name, imported in _imported("", path, _tree(path)):
                public = _PUBLIC.get(name) if imported == f"{PACKAGE}:{name}" else None
                if place := public or _place(imported):
                    used |= code_used(place)
    for name, content in sorted(used.items()):
        digest.update(f"{name}\n".encode() + content)
    return digest.hexdigest()[:16]
