"""The code digest: edits that matter change it, edits that do not leave it."""

import ast
import shutil
from pathlib import Path

import pytest

import recurformer
from recurformer import digest
from recurformer.cli.main import STAGES, code_of


def forget():
    """A run reads every module once; these tests edit them."""
    for remembered in (digest._tree, digest._names, digest._content, digest._used_by):
        remembered.cache_clear()
    digest.code_used.cache_clear()
    digest.code_digest.cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package that may be edited."""
    root = tmp_path / "recurformer"
    shutil.copytree(Path(recurformer.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(digest, "ROOT", root)
    forget()
    yield root
    forget()


def changed_by(edit):
    """The stages whose digest an edit changes."""
    before = {stage: digest.code_digest(code_of(stage)) for stage in STAGES}
    edit()
    forget()
    return {stage for stage in STAGES if digest.code_digest(code_of(stage)) != before[stage]}


def append(path, text="\nEXTRA = 1\n"):
    path.write_text(path.read_text() + text)


def insert(path, function):
    """A line at the beginning of a function."""
    text = path.read_text()
    (node,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == function)
    lines = text.splitlines(keepends=True)
    lines.insert(node.body[0].lineno - 1, "    extra = 1\n")
    path.write_text("".join(lines))


TRAININGS = {"train", "train-hashhop", "recover", "mqar", "adapt"}


@pytest.mark.parametrize(
    ("module", "some", "others"),
    [
        ("heads/select.py", {"select", "needle", "ablation-hashhop"}, {"profile", "train", "hashhop", "cache-peak"}),
        ("heads/profile.py", {"select", "profile", "attention-map"}, {"train", "hashhop", "contribution"}),
        ("evaluate/hashhop.py", {"hashhop", "ablation-hashhop", "hashhop-sizes"}, TRAININGS - {"adapt"}),
        ("corpora/windows.py", {"train", "recover", "continuation", "sink"}, {"train-hashhop", "hashhop", "mqar"}),
        ("train/trainer.py", {"train", "train-hashhop", "recover"}, {"select", "hashhop", "perplexity"}),
        ("study/method.py", set(), set(STAGES)),
        ("cli/main.py", set(), set(STAGES)),
        ("tracking/live.py", set(), TRAININGS),
        ("render/style.py", {"figure"}, {"select", "compare"}),
    ],
)
def test_a_module_counts_for_the_stages_that_use_it(package, module, some, others):
    changed = changed_by(lambda: append(package / module))
    assert some <= changed
    assert not others & changed


@pytest.mark.parametrize(
    ("module", "function", "stages"),
    [
        ("train", "mqar", {"mqar"}),
        ("train", "train_hashhop", {"train-hashhop"}),
        ("hashhop", "hashhop", {"hashhop"}),
        ("hashhop", "_print_quality", {"ablation-hashhop", "hashhop-sizes"}),
        ("evaluate", "needle", {"needle"}),
        ("evaluate", "_tasks", {"lm-eval", "ablation-lm-eval"}),
        ("training", "train_and_keep", {"train", "train-hashhop", "recover"}),
        ("identity", "measure", {"needle", "continuation", "ablation-hashhop", "hashhop-sizes", "ablation-lm-eval"}),
    ],
)
def test_of_a_module_of_stages_only_what_a_stage_names_counts_for_it(package, module, function, stages):
    """Else an edit of an evaluator would run trainings again."""
    assert changed_by(lambda: insert(package / f"cli/{module}.py", function)) == stages


def test_a_constant_counts_for_the_stages_that_name_it(package):
    def edit():
        path = package / "cli/training.py"
        path.write_text(path.read_text().replace('"halvings"}', '"halvings", "name"}'))

    assert changed_by(edit) == TRAININGS


def test_comments_docstrings_and_layout_do_not_count(package):
    def edit():
        for module in (package / "heads/select.py", package / "cli/heads.py"):
            text = module.read_text()
            module.write_text("# A remark.\n" + text.replace('"""', '"""Well, ', 1) + "\n\n\n# The end.\n")

    assert changed_by(edit) == set()


@pytest.mark.parametrize(
    ("file", "some", "others"),
    [
        ("evaluate/tasks/passkey.yaml", {"lm-eval"}, {"hashhop", "mqar"}),
        ("render/recurformer.mplstyle", {"figure"}, {"table"}),
    ],
)
def test_data_files_count_for_the_stages_that_read_them(package, file, some, others):
    changed = changed_by(lambda: append(package / file, "\n# A remark.\n"))
    assert some <= changed
    assert not others & changed


def test_fields_that_only_some_versions_of_python_know_do_not_count():
    """Python 3.12 gave functions the field `type_params`, empty nearly always."""
    tree = digest.ast.parse("def twice(x: int) -> int:\n    return 2 * x\n")
    text = digest._dump(tree)
    tree.body[0].type_params = []
    tree.body[0]._fields = (*tree.body[0]._fields, "type_params")
    assert digest._dump(tree) == text
    tree.body[0].type_params = ["T"]
    assert digest._dump(tree) != text


@pytest.mark.parametrize("place", ["recurformer.cli.brew", "recurformer.cli.heads:brew"])
def test_a_place_that_is_not_there_is_named(place):
    with pytest.raises(ValueError, match=place):
        digest.code_digest(place)
