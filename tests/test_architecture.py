"""The rooms of tables, figures and claims import downwards only, as docs/architecture.md says, and the packages of the
extra `suite` are imported by what draws and by what reads Wikipedia alone.
"""

import ast
import re
from importlib.metadata import requires
from pathlib import Path

import pytest

import recurformer

ROOT = Path(recurformer.__file__).parent
BELOW = {
    "paper": set(),
    "results": {"paper", "records", "study", "data"},
    "render": {"paper", "results", "study", "files"},
    "claims": {"paper", "results", "records", "study", "data", "files"},
}
"""Room -> the parts of the package that it may import."""


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path):
    """The rooms that a module imports, at the top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (module.split(".")[1] for module in modules if module.startswith("recurformer."))


IMPORTS = [(room_of(path), room) for path in ROOT.rglob("*.py") for room in imported(path)]
"""Every import from room to room."""


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_what_is_below_it_alone(room):
    assert {other for importer, other in IMPORTS if importer == room} - {room} <= BELOW[room]


def test_no_two_rooms_import_each_other():
    """Settings name the sizes of tasks and backbones, plain numbers, and these take settings."""
    pairs = {frozenset(pair) for pair in IMPORTS if pair[::-1] in IMPORTS and pair[0] != pair[1]}
    assert pairs <= {frozenset({"data", "study"})}


def test_only_commands_import_what_renders_or_judges():
    for room in ("render", "claims"):
        assert {importer for importer, other in IMPORTS if other == room} <= {room, "cli"}


SUITE = {re.split(r"[\[<>=]", one)[0].replace("-", "_") for one in requires("recurformer") if 'extra == "suite"' in one}
"""The modules of the extra's packages, which have the packages' names."""


def imported_at_once(path):
    """The packages that a module imports at its top."""
    for node in ast.parse(path.read_text("utf-8")).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        yield from (name.split(".")[0] for name in names)


def test_the_suites_packages_are_imported_by_what_draws_and_by_what_reads_wikipedia_alone():
    importers = {path for path in ROOT.rglob("*.py") if SUITE.intersection(imported_at_once(path))}
    others = {path for path in importers if path.parent.name != "render" or "figure" not in path.stem}
    assert {path.stem for path in others} == {"style", "panels", "wikipedia"} and len(importers) > 5
