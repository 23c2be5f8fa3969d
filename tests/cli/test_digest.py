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
        yield root, {stage: digest.code_digest(code_of(stage)) for stage in STAGES}
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
        return {stage for stage in STAGES if digest.code_digest(code_of(stage)) != before[stage]}

    yield changed
    for path, text in saved.items():
        path.write_text(text)


def append(path):
    path.write_text(path.read_text() + "\nEXTRA = 1\n")


def insert(function):
    """Adds a line at the beginning of a function."""

    def edit(path):
        text = path.read_text()
        (node,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == function)
        lines = text.splitlines(keepends=True)
        lines.insert(node.body[0].lineno - 1, "    extra = 1\n")
        path.write_text("".join(lines))

    return edit


TRAININGS = {"train", "train-hashhop", "recover", "mqar", "adapt"}


@pytest.mark.parametrize(
    ("module", "some", "others"),
    [
        ("heads/select.py", {"select", "needle", "hashhop"}, {"train-hashhop", "convert"}),
        ("measure/hashhop.py", {"hashhop", "hashhop-sizes"}, TRAININGS),
        ("measure/cache.py", {"cache", "recover"}, {"train-hashhop", "mqar", "profile", "select"}),
        (
            "data/windows.py",
            {"train", "recover", "continuation", "sink"},
            {"train-hashhop", "profile-hashhop", "mqar"},
        ),
        ("train/trainer.py", {"train", "train-hashhop", "recover"}, {"select", "hashhop", "perplexity"}),
        ("cli/main.py", set(), set(STAGES)),
        ("train/trackers.py", set(), TRAININGS),
        ("render/style.py", {"figure"}, {"select", "compare"}),
        ("results/scores.py", {"figure", "table", "claims"}, {"needle", "hashhop", *TRAININGS}),
        ("claims/quality.py", {"table", "claims"}, {"figure", "hashhop", *TRAININGS}),
    ],
)
def test_a_module_counts_for_the_stages_that_use_it(changed_by, module, some, others):
    changed = changed_by(append, module)
    assert some <= changed
    assert not others & changed


@pytest.mark.parametrize(
    ("module", "function", "stages"),
    [
        ("train", "train_hashhop", {"train-hashhop"}),
        ("heads", "profile", {"profile"}),
        ("resumable", "train_and_keep", TRAININGS),
        ("subjects", "measure", {"needle", "continuation", "hashhop", "hashhop-sizes", "ablation-lm-eval"}),
    ],
)
def test_a_stage_counts_for_itself_alone_and_what_stages_share_for_all(changed_by, module, function, stages):
    """Else an edit of an evaluator would run trainings again."""
    changed = changed_by(insert(function), f"cli/{module}.py")
    assert stages <= changed
    assert len(stages) > 1 or stages == changed
    assert not (changed - stages) & TRAININGS


def test_what_types_alone_need_does_not_count(changed_by):
    def edit(path):
        text = path.read_text()
        path.write_text(text.replace("if TYPE_CHECKING:\n", "if TYPE_CHECKING:\n    import colorsys\n", 1))

    assert changed_by(edit, "heads/select.py", "cli/heads.py") == set()


def test_comments_docstrings_and_layout_do_not_count(changed_by):
    def edit(path):
        path.write_text("# A remark.\n" + path.read_text().replace('"""', '"""Well, ', 1) + "\n\n\n# The end.\n")

    assert changed_by(edit, "heads/select.py", "cli/heads.py") == set()


@pytest.mark.parametrize(
    ("file", "some", "others"),
    [
        ("measure/tasks/passkey.yaml", {"ablation-lm-eval"}, {"hashhop", "mqar"}),
        ("render/recurformer.mplstyle", {"figure"}, {"table"}),
    ],
)
def test_data_files_count_for_the_stages_that_read_them(changed_by, file, some, others):
    changed = changed_by(append, file)
    assert some <= changed
    assert not others & changed


@pytest.mark.parametrize("place", ["recurformer.cli.brew", "recurformer.cli.heads:brew"])
def test_a_place_that_is_not_there_is_named(place):
    with pytest.raises(ValueError, match=place):
        digest.code_digest(place)
