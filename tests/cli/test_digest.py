"""The code digest: edits that matter change it, edits that do not leave it."""

import ast
import shutil
from pathlib import Path

import pytest

import recurformer
from recurformer import digest
from recurformer.cli.main import STAGES


def forget():
    """A run reads every module once; these tests edit them."""
    for remembered in (digest._tree, digest._content, digest.files_used, digest.code_digest):
        remembered.cache_clear()


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of the package, and the digests of its stages."""
    root = tmp_path_factory.mktemp("copy") / "recurformer"
    shutil.copytree(Path(recurformer.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "ROOT", root)
        forget()
        yield root, {name: digest.code_digest(stage.place) for name, stage in STAGES.items()}
    forget()


@pytest.fixture
def changed_by(copied):
    """The stages whose digest an edit of files changes; afterwards the files are as they were."""
    root, before = copied
    saved = {}

    def changed(edit, *names):
        paths = [root / name for name in names]
        saved.update((path, path.read_text()) for path in paths)
        for path in paths:
            edit(path)
        forget()
        return {name for name, stage in STAGES.items() if digest.code_digest(stage.place) != before[name]}

    yield changed
    for path, text in saved.items():
        path.write_text(text)


def append(path):
    path.write_text(path.read_text() + "\nEXTRA = 1\n")


def insert(function):
    """Adds a line at the end of a function."""

    def edit(path):
        lines = path.read_text().splitlines()
        (node,) = (node for node in ast.parse("\n".join(lines)).body if getattr(node, "name", "") == function)
        path.write_text("\n".join([*lines[: node.end_lineno], "    extra = 1", *lines[node.end_lineno :]]))

    return edit


TRAININGS = {"train", "train-copying", "train-hashhop", "recover", "mqar", "adapt"}


def users_of(module):
    return {name for name, stage in STAGES.items() if digest.ROOT / module in digest.files_used(stage.place)}


@pytest.mark.parametrize(
    ("module", "some", "others"),
    [
        ("heads/select.py", {"select", "needle", "hashhop"}, {"train-hashhop", "convert"}),
        ("measure/cache.py", {"cache", "recover"}, {"train-hashhop", "mqar", "profile", "select"}),
        ("data/windows.py", {"train", "recover", "continuation", "sink"}, {"train-hashhop", "profile-hashhop", "mqar"}),
        ("cli/main.py", set(), set(STAGES)),
        ("train/trackers.py", set(), TRAININGS),
        ("render/style.py", {"figure"}, {"select", "compare"}),
        ("claims/quality.py", {"table", "claims"}, {"figure", "hashhop", *TRAININGS}),
    ],
)
def test_a_module_counts_for_the_stages_that_use_it(module, some, others):
    assert some <= users_of(module)
    assert not others & users_of(module)


def test_an_edit_changes_the_digests_of_those_that_use_the_module(changed_by):
    users = users_of("measure/cache.py")
    assert changed_by(append, "measure/cache.py", "cli/main.py") == users < set(STAGES)


def test_a_stage_counts_for_itself_alone(changed_by):
    """Else an edit of an evaluator would run trainings again."""
    assert changed_by(insert("train_hashhop"), "cli/train.py") == {"train-hashhop"}
    assert changed_by(insert("profile"), "cli/heads.py") == {"train-hashhop", "profile"}


def test_what_stages_share_counts_for_all(changed_by):
    measuring = {"needle", "continuation", "hashhop", "hashhop-sizes", "ablation-lm-eval"}
    changed = changed_by(insert("measure"), "cli/measure.py")
    assert measuring <= changed and not changed & TRAININGS
    assert changed_by(insert("train_and_keep"), "cli/resumable.py") >= TRAININGS


def test_comments_docstrings_layout_and_what_types_need_do_not_count(changed_by):
    def edit(path):
        text = path.read_text().replace("if TYPE_CHECKING:\n", "if TYPE_CHECKING:\n    import colorsys\n", 1)
        path.write_text("# A remark.\n" + text.replace('"""', '"""Well, ', 1) + "\n\n\n# The end.\n")

    assert changed_by(edit, "heads/select.py", "cli/heads.py") == set()


def test_data_files_count_for_the_stages_that_read_them(changed_by):
    changed = changed_by(append, "measure/tasks/passkey.yaml", "render/recurformer.mplstyle")
    assert {"ablation-lm-eval", "figure"} <= changed
    assert not {"hashhop", "mqar", "table"} & changed
