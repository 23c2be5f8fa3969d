"""The code digest: edits that matter change it, edits that do not leave it."""

import ast
import shutil
from pathlib import Path

import pytest

import recurformer
from recurformer import digest
from recurformer.cli.main import STAGES, code_of


def remembering(function):
    """A function of a file that is called once for each content of it: most edits leave most files."""
    kept = {}

    def remembered(path):
        key = path, path.read_bytes()
        if key not in kept:
            kept[key] = function(path)
        return kept[key]

    return remembered


def forget():
    """A run reads every module once; these tests edit them."""
    for remembered in (digest._names, digest._used_by, digest.code_used, digest.code_digest):
        remembered.cache_clear()


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of the package, and the digests of its stages."""
    root = tmp_path_factory.mktemp("copy") / "recurformer"
    shutil.copytree(Path(recurformer.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "ROOT", root)
        patch.setattr(digest, "_tree", remembering(digest._tree.__wrapped__))
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
        digest._content.cache_clear()
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
        ("heads/select.py", {"select", "needle", "ablation-hashhop"}, {"profile", "train-hashhop", "convert"}),
        ("evaluate/hashhop.py", {"hashhop", "ablation-hashhop", "hashhop-sizes"}, TRAININGS),
        (
            "corpora/windows.py",
            {"train", "recover", "continuation", "sink"},
            {"train-hashhop", "profile-hashhop", "hashhop", "mqar"},
        ),
        ("train/trainer.py", {"train", "train-hashhop", "recover"}, {"select", "hashhop", "perplexity"}),
        ("cli/main.py", set(), set(STAGES)),
        ("train/trackers.py", set(), TRAININGS),
        ("render/style.py", {"figure"}, {"select", "compare"}),
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
        ("heads", "_keep_profile", {"profile", "profile-hashhop"}),
        ("resumable", "train_and_keep", {"train", "train-hashhop", "recover"}),
        ("identity", "measure", {"needle", "continuation", "ablation-hashhop", "hashhop-sizes", "ablation-lm-eval"}),
    ],
)
def test_of_a_module_of_stages_only_what_a_stage_names_counts_for_it(changed_by, module, function, stages):
    """Else an edit of an evaluator would run trainings again."""
    assert changed_by(insert(function), f"cli/{module}.py") == stages


def test_a_constant_counts_for_the_stages_that_name_it(changed_by):
    def edit(path):
        path.write_text(path.read_text().replace('"halvings"}', '"halvings", "name"}'))

    assert changed_by(edit, "cli/resumable.py") == TRAININGS


def test_comments_docstrings_and_layout_do_not_count(changed_by):
    def edit(path):
        path.write_text("# A remark.\n" + path.read_text().replace('"""', '"""Well, ', 1) + "\n\n\n# The end.\n")

    assert changed_by(edit, "heads/select.py", "cli/heads.py") == set()


@pytest.mark.parametrize(
    ("file", "some", "others"),
    [
        ("evaluate/tasks/passkey.yaml", {"ablation-lm-eval"}, {"hashhop", "mqar"}),
        ("render/recurformer.mplstyle", {"figure"}, {"table"}),
    ],
)
def test_data_files_count_for_the_stages_that_read_them(changed_by, file, some, others):
    changed = changed_by(append, file)
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


def test_code_beside_the_package_counts_with_what_it_uses(copied, tmp_path):
    root, _ = copied
    (tmp_path / "one.py").write_text(
        "from recurformer.measure.cache import count_cache\nfrom recurformer import convert"
    )
    (tmp_path / "inner").mkdir()

    def edited(file, text):
        before, old = digest.folder_digest(tmp_path), file.read_text() if file.exists() else ""
        file.write_text(old + text)
        for remembered in (digest._content, digest.folder_digest):
            remembered.cache_clear()
        forget()
        changed = digest.folder_digest(tmp_path) != before
        if file.is_relative_to(root):
            file.write_text(old)
            digest._content.cache_clear()
            digest.folder_digest.cache_clear()
            forget()
        return changed

    assert edited(tmp_path / "inner/two.py", "x = 1\n")
    assert edited(root / "measure/cache.py", "x = 1\n")
    assert edited(root / "model/convert.py", "x = 1\n")
    assert not edited(root / "measure/cache.py", "# a comment\n")
    assert not edited(root / "render/adaptation.py", "x = 1\n")
