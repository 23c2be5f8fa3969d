"""Files and folders appear whole or not at all."""

import os
import tempfile
from pathlib import Path

import pytest

from recurformer.cli.checkpoints import open_config
from recurformer.files import HASHED, STAMP, atomic_path, refuse_strange_model, writing_model


@pytest.mark.parametrize("directory", [False, True])
def test_nothing_is_left_of_a_failure(tmp_path, directory):
    with pytest.raises(KeyError), atomic_path(tmp_path / "deep" / "result.csv", directory) as path:
        (path / "part" if directory else path).write_text("half")
        raise KeyError
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.fixture
def model(tmp_path):
    """A model's folder as a run leaves it."""
    with writing_model(tmp_path / "model") as path:
        (path / "deep").mkdir()
        (path / "deep/weights").write_text("first")
    (tmp_path / "model" / STAMP).touch()
    return tmp_path / "model"


def test_a_run_replaces_the_model_of_an_earlier_one(model):
    with writing_model(model) as path:
        (path / "weights").write_text("second")
    assert (model / "weights").read_text() == "second" and not (model / "deep").exists()


@pytest.mark.parametrize(("name", "content"), [("thesis.tex", "years of work"), ("deep/weights", "fixed")])
def test_what_a_user_added_or_changed_is_never_replaced(model, name, content):
    """Also a change that keeps the size."""
    (model / name).write_text(content)
    with pytest.raises(ValueError, match=f"model: holds {name}, which no earlier run wrote as"), writing_model(model):
        pytest.fail("the work has begun")
    assert (model / name).read_text() == content


def test_a_large_file_is_known_by_its_size(tmp_path):
    with writing_model(tmp_path / "model") as path, (path / "weights").open("wb") as weights:
        weights.truncate(HASHED + 1)
    refuse_strange_model(tmp_path / "model")
    os.truncate(tmp_path / "model/weights", HASHED + 2)
    with pytest.raises(ValueError, match="model: holds weights, which"):
        refuse_strange_model(tmp_path / "model")


def test_a_file_and_the_present_folder_are_no_places_for_a_model(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    with pytest.raises(ValueError, match="file: exists and is not a folder"):
        refuse_strange_model(tmp_path / "file")
    for place in (".", "../../" + tmp_path.name, tmp_path / "inner"):
        with pytest.raises(ValueError, match="the command runs in this folder"):
            refuse_strange_model(place)


def test_a_model_goes_where_a_link_points(tmp_path):
    (tmp_path / "disk/model").mkdir(parents=True)
    (tmp_path / "model").symlink_to("disk/model")
    for content in ("first", "second"):
        with writing_model(tmp_path / "model") as path:
            (path / "weights").write_text(content)
        assert (tmp_path / "disk/model/weights").read_text() == content
        assert (tmp_path / "model").is_symlink() and len(list((tmp_path / "disk").iterdir())) == 1


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_umask_decides_who_may_read(tmp_path, umask):
    before = os.umask(umask)
    try:
        with writing_model(tmp_path / "model") as path:
            (path / "inner").mkdir(mode=0o700)
            for file in (path / "weights", path / "inner/weights"):
                file.touch(mode=0o600)
        with atomic_path(tmp_path / "rows.csv") as path:
            path.touch(mode=0o600)
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~umask, path


def test_weights_that_must_not_be_read_are_named():
    """By a user who may not read them: the superuser of a container may read everything."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # others may not even enter tmp_path
        os.chmod(folder, 0o755)
        Path(folder, "config.json").write_text("{}")
        Path(folder, "model.safetensors").touch(mode=0o000)
        user = os.geteuid()
        os.seteuid(user or 65534)
        try:
            with pytest.raises(PermissionError, match=f"'{folder}/model.safetensors'"):
                open_config(folder)
        finally:
            os.seteuid(user)
