"""A digest of the code that a stage uses, so that a workflow runs again what an edit affects and nothing else.

It covers the function of the stage, what stands beside the stages in its module, every module of this package that
these import, directly or not, at the top or inside functions, and the data files that such a module names. Comments,
docstrings, formatting and imports for types do not count. What nothing imports is not seen.
"""

import ast
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parent
DATA = (".yaml", ".mplstyle", ".j2", ".css", ".js", ".cpp", ".h")
PLUMBING = ("study", "records", "files", "digest", "tracking", "train/trackers", "cli/main", "cli/stage")
"""Files and folders that carry settings and files but compute nothing: settings are tracked as params."""


def _find(module: str) -> Path | None:
    """The file of a module of this package, found without importing anything."""
    package, *inner = module.split(".")
    places = (ROOT.joinpath(*inner).with_suffix(".py"), ROOT.joinpath(*inner, "__init__.py"))
    return next((path for path in places if package == ROOT.name and path.is_file()), None)


def _counts(node: ast.AST) -> bool:
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not is_docstring and not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A module or statement, and those inside it: expressions, of which there are many more, hold none."""
    yield node
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        inner = getattr(node, part, ())
        for statement in inner if isinstance(inner, list) else ():
            yield from _statements(statement)


@cache
def _tree(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = list(filter(_counts, node.body)) or [ast.Pass()]
    return tree


_text = cache(ast.unparse)


def _is_stage(node: ast.AST) -> bool:
    calls = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(isinstance(call, ast.Call) and ast.unparse(call.func) == "stage" for call in calls)


def _imports(path: Path, nodes: Iterable[ast.AST]) -> Iterator[tuple[Path, str]]:
    """The files of this package that some code of a module imports, each with the name that is taken from it."""
    for node in (inner for outer in nodes for inner in _statements(outer)):
        if isinstance(node, ast.Import):
            yield from ((file, alias.name) for alias in node.names if (file := _find(alias.name)))
        elif isinstance(node, ast.ImportFrom):
            above = path.relative_to(ROOT.parent).parts[: -node.level] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            files = {alias.name: _find(f"{module}.{alias.name}") or _find(module) for alias in node.names}
            yield from ((file, name) for name, file in files.items() if file)


@cache
def _data_beside(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.suffix in DATA]


@cache
def _content(path: Path) -> tuple[str, frozenset[Path]]:
    """What counts of a module: its code with the data files that it names, and the files that it imports."""
    tree, beside = _tree(path), _data_beside(path.parent)
    named = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} if beside else set()
    data = [file.read_text("utf-8") for file in beside if named.intersection(file.relative_to(path.parent).parts)]
    above = path.parent / "__init__.py"
    return "\n".join([ast.unparse(tree), *data]), frozenset({above, *(file for file, _ in _imports(path, [tree]))})


def _function(place: str) -> tuple[Path, ast.stmt]:
    """The file and the code of a function, named `module:function`.

    Raises:
        ValueError: there is no such module or function.
    """
    module, _, name = place.partition(":")
    if (path := _find(module)) is None:
        raise ValueError(f"{module}: no such module")
    functions = [node for node in _tree(path).body if getattr(node, "name", "") == name]
    if not functions:
        raise ValueError(f"{place}: no such name in the module")
    return path, functions[0]


def functions_used(place: str, rooms: Collection[str]) -> Iterator[tuple[Path, int, str]]:
    """File, line and name of the functions of some folders that a stage, named `module:function`, imports."""
    path, function = _function(place)
    for file, name in _imports(path, [function]):
        if file.parent.name in rooms:
            nodes = [node for node in _tree(file).body if isinstance(node, ast.FunctionDef) and node.name == name]
            yield from ((file, node.lineno, name) for node in nodes)


@cache
def files_used(place: str) -> frozenset[Path]:
    """The files with the code that a stage, named `module:function`, uses beside its own module."""
    path, function = _function(place)
    own = [node for node in _tree(path).body if node is function or not _is_stage(node)]
    found: set[Path] = set()
    waiting = {file for file, _ in _imports(path, own)}
    while waiting:
        file = waiting.pop()
        if file != ROOT / "__init__.py" and not file.relative_to(ROOT).with_suffix("").as_posix().startswith(PLUMBING):
            found.add(file)
            waiting |= _content(file)[1] - found
    return frozenset(found - {path})


@cache
def code_digest(place: str) -> str:
    """Sixteen hexadecimal digits that change when the code used by a stage, named `module:function`, does."""
    path, function = _function(place)
    own = [_text(node) for node in _tree(path).body if node is function or not _is_stage(node)]
    used = [f"{file.relative_to(ROOT)}\n{_content(file)[0]}" for file in sorted(files_used(place))]
    return sha256("\n".join([*own, *used]).encode()).hexdigest()[:16]
