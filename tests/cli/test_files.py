"""Files and folders appear whole or not at all."""

import subprocess
import sys

import pytest

from recurformer.files import atomic_path


@pytest.mark.parametrize("directory", [False, True])
def test_nothing_is_left_of_a_failure(tmp_path, directory):
    with pytest.raises(KeyError), atomic_path(tmp_path / "deep" / "result.csv", directory) as path:
        (path / "part" if directory else path).write_text("half")
        raise KeyError
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_file_replaces_the_old_one_at_the_end_only(tmp_path):
    target = tmp_path / "result.csv"
    target.write_text("old")
    with atomic_path(target) as path:
        path.write_text("new")
        assert path.suffix == ".csv"
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_replaces_the_old_one(tmp_path):
    target = tmp_path / "model"
    for name in ("first", "second"):
        with atomic_path(target, directory=True) as path:
            (path / name).write_text(name)
    assert [file.name for file in target.iterdir()] == ["second"]


def test_what_a_killed_process_left_is_gone(tmp_path):
    script = "import os; from recurformer.files import atomic_path\nwith atomic_path('model', True): os._exit(9)"
    assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False).returncode == 9
    assert [path.name for path in tmp_path.iterdir()] == [".unfinished-model"]
    with atomic_path(tmp_path / "model", directory=True) as path:
        assert list(path.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ValueError, match=r"file/result\.csv: cannot be written"),
        atomic_path(tmp_path / "file" / "result.csv"),
    ):
        pass
