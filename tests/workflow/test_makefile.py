"""What `make` does in places and logins other than a developer's."""

import os
import subprocess

import pytest

from tests.workflow.dry_runs import ROOT


@pytest.fixture
def folder(tmp_path):
    """The Makefile in a folder without a repository, whose name has a space."""
    folder = tmp_path / "an archive"
    folder.mkdir()
    (folder / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    return folder


def make(folder, *words, **environment):
    return subprocess.run(
        ["make", "--no-print-directory", *words], cwd=folder, env=os.environ | environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_clean_leaves_the_texts_about_the_folders_also_without_a_repository(folder, tmp_path):
    (tmp_path / "another disk").mkdir()
    (folder / "results").symlink_to(tmp_path / "another disk")
    tracked = {"results/README.md", "figures/README.md"}
    for name in (*tracked, "results/mqar/README.md", "results/a b.csv", "figures/a.svg"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    cleaned = make(folder, "clean")
    assert cleaned.returncode == 0, cleaned.stderr
    left = {str(path.relative_to(folder)) for place in ("results", "figures") for path in (folder / place).rglob("*")}
    assert left == tracked
    assert (folder / "results/README.md").read_text() == "mine"
