"""The code digest: edits that matter change it, edits that do not leave it."""

import shutil
from pathlib import Path

import pytest

import recurformer
from recurformer import digest


def forget():
    """A run reads every module once; these tests edit them."""
    for remembered in (digest._tree, digest._imports, digest._content, digest.code_digest):
        remembered.cache_clear()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package that may be edited."""
    root = tmp_path / "recurformer"
    shutil.copytree(Path(recurformer.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(digest, "ROOT", root)
    forget()
    yield root
    forget()


def after(edit):
    forget()
    edit()
    return digest.code_digest("recurformer.cli.select")


def append(path, text):
    path.write_text(path.read_text() + text)


def test_it_follows_imports_inside_functions(package):
    assert "recurformer.heads.select" in digest.modules_used("recurformer.cli.select")


@pytest.mark.parametrize("module", ["cli/select.py", "heads/select.py", "heads/profile.py"])
def test_used_code_counts(package, module):
    before = digest.code_digest("recurformer.cli.select")
    assert after(lambda: append(package / module, "\nEXTRA = 1\n")) != before


@pytest.mark.parametrize(
    "module", ["tasks/mqar.py", "train/trainer.py", "study/method.py", "cli/main.py", "render/style.py"]
)
def test_other_code_does_not(package, module):
    before = digest.code_digest("recurformer.cli.select")
    assert after(lambda: append(package / module, "\nEXTRA = 1\n")) == before


def test_comments_docstrings_and_layout_do_not_count(package):
    before = digest.code_digest("recurformer.cli.select")
    module = package / "heads/select.py"

    def edit():
        text = module.read_text()
        module.write_text("# A remark.\n" + text.replace('"""', '"""Well, ', 1) + "\n\n\n# The end.\n")

    assert after(edit) == before


@pytest.mark.parametrize(
    ("file", "stage", "counts"),
    [
        ("evaluate/tasks/passkey.yaml", "lm_eval", True),
        ("evaluate/tasks/passkey.yaml", "hashhop", False),
        ("evaluate/tasks/passkey.yaml", "mqar", False),
        ("render/recurformer.mplstyle", "figure", True),
        ("render/recurformer.mplstyle", "table", False),
    ],
)
def test_data_files_count_for_the_stages_that_read_them(package, file, stage, counts):
    before = digest.code_digest(f"recurformer.cli.{stage}")
    append(package / file, "\n# A remark.\n")
    forget()
    assert (digest.code_digest(f"recurformer.cli.{stage}") != before) is counts


def test_an_evaluator_does_not_count_for_the_training(package):
    before = digest.code_digest("recurformer.cli.train_hashhop")
    append(package / "evaluate/hashhop.py", "\nEXTRA = 1\n")
    forget()
    assert digest.code_digest("recurformer.cli.train_hashhop") == before


def test_trackers_do_not_count_for_the_trainings_they_show(package):
    before = digest.code_digest("recurformer.cli.train")
    append(package / "tracking/live.py", "\nEXTRA = 1\n")
    forget()
    assert digest.code_digest("recurformer.cli.train") == before


def test_what_cuts_windows_of_text_does_not_count_for_hashhop():
    for stage in ("train_hashhop", "profile_hashhop", "hashhop", "mqar"):
        assert "recurformer.corpora.windows" not in digest.modules_used(f"recurformer.cli.{stage}")


def test_fields_that_only_some_versions_of_python_know_do_not_count():
    """Python 3.12 gave functions the field `type_params`, empty nearly always."""
    tree = digest.ast.parse("def twice(x: int) -> int:\n    return 2 * x\n")
    text = digest._dump(tree)
    tree.body[0].type_params = []
    tree.body[0]._fields = (*tree.body[0]._fields, "type_params")
    assert digest._dump(tree) == text
    tree.body[0].type_params = ["T"]
    assert digest._dump(tree) != text


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"cli\.brew"):
        digest.code_digest("recurformer.cli.brew")
