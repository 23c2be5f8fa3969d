"""Run records: what they hold, and how a file leads to the runs behind it."""

import shutil
import subprocess

import pytest
import torch

from recurformer import records
from recurformer.cli.study import write_recording
from recurformer.model import scan
from recurformer.records import ancestors, read_record, record_of, run_record, runs_behind


def write_run(folder, name, stage, inputs=(), text=""):
    """A run that writes one file and its record."""
    folder.mkdir(parents=True, exist_ok=True)
    with run_record(
        folder / f"{name}.run.json", stage, [stage], {"seed": 3}, inputs=list(map(str, inputs)), outputs=[folder / name]
    ):
        (folder / name).write_text(text)
    return folder / name


UNKNOWN = {"commit": None, "dirty": None, "difference": None}


@pytest.fixture
def code(tmp_path, monkeypatch):
    """The top folder of another copy of this package's code, within a repository of a user's own."""
    place = tmp_path / "theirs/ours/src/recurformer/records.py"
    place.parent.mkdir(parents=True)
    place.write_text("pass\n")
    monkeypatch.setattr(records, "__file__", str(place))
    commit(tmp_path / "theirs")
    return tmp_path / "theirs/ours"


def commit(top):
    """Make a repository of a folder, with all of its files in one commit; its name."""
    who = ("-c", "user.name=me", "-c", "user.email=me@here")
    for words in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "--message", "all"]):
        subprocess.run(["git", *words], cwd=top, check=True)
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=top, text=True).strip()


def recorded(folder):
    """What a run in a folder records of its code."""
    with run_record(folder / "run.json", "x", [], {}):
        pass
    return read_record(folder / "run.json")["git"]


@pytest.mark.parametrize("in_a_hook", [False, True])
def test_the_commit_of_our_repository_is_recorded_and_not_that_of_one_around_it(code, tmp_path, monkeypatch, in_a_hook):
    """Nor that of the repository whose hook this is, which git names in its variables."""
    if in_a_hook:
        monkeypatch.setenv("GIT_DIR", str(code.parent / ".git"))
        monkeypatch.setenv("GIT_WORK_TREE", str(code.parent))
    assert recorded(tmp_path) == UNKNOWN
    with monkeypatch.context() as patch:
        patch.delenv("GIT_DIR", raising=False)
        patch.delenv("GIT_WORK_TREE", raising=False)
        own = commit(code)
    assert recorded(tmp_path) == {"commit": own, "dirty": False, "difference": None}
    (code / "src/recurformer/records.py").write_bytes(b"# caf\xe9\n")
    tree = recorded(tmp_path)
    assert (tree["commit"], tree["dirty"]) == (own, True) and tree["difference"]


def test_without_git_a_run_is_recorded_without_a_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert recorded(tmp_path) == UNKNOWN


@pytest.fixture
def chain(tmp_path, monkeypatch):
    """A profile, heads chosen by it, and a model that has both behind it; written in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    write_run(results / "language", "profile.parquet", "profile")
    write_run(results / "language/beta-0.5", "heads.json", "select", ["results/language/profile.parquet"])
    parents = ["results/language/beta-0.5/heads.json", "results/language/profile.parquet"]
    write_run(results / "language/beta-0.5/seed-0", "trained", "train", parents)
    return tmp_path


def test_a_record_names_what_was_read_and_by_which_runs_that_was_made(chain):
    record = read_record(chain / "results/language/beta-0.5/heads.json.run.json")
    profile = read_record(chain / "results/language/profile.parquet.run.json")
    assert record["inputs"] == [{"path": "results/language/profile.parquet", "run": profile["run"]}]
    assert record["parents"] == [profile["run"]]
    assert record["outputs"] == ["heads.json"]
    assert record["seed"] == 3
    assert record["accelerator"] is None or record["accelerator"]["name"]
    assert {"argv", "settings", "lock", "versions", "host", "started", "seconds", "peak_memory_bytes"} <= set(record)


def test_a_file_leads_to_its_record_and_to_nothing_when_no_run_wrote_it(chain):
    folder = chain / "results/language/beta-0.5"
    assert record_of(folder / "heads.json") == folder / "heads.json.run.json"
    (folder / "notes.txt").write_text("by hand")
    assert record_of(folder / "notes.txt") is None
    assert runs_behind([folder / "notes.txt", folder / "heads.json", folder / "heads.json"]) == [
        read_record(folder / "heads.json.run.json")["run"]
    ]


@pytest.mark.parametrize("recorded", [False, True])
def test_all_runs_before_a_run_are_found_once_also_in_a_recording(chain, recorded):
    root = chain
    if recorded:
        root = chain / "recorded/somewhere"
        root.mkdir(parents=True)
        files = {path.relative_to(chain): path for path in chain.glob("results/**/*.run.json")}
        write_recording(root, files)
        shutil.rmtree(chain / "results")
    found = ancestors(root / "results/language/beta-0.5/seed-0/trained.run.json")
    assert [record["stage"] for _, record in found] == ["train", "select", "profile"]
    assert all(root in place.parents for place, _ in found)


def test_a_record_does_not_take_a_later_run_for_the_one_that_it_read(chain):
    selected = chain / "results/language/beta-0.5/heads.json.run.json"
    before = read_record(selected)["parents"]
    write_run(chain / "results/language", "profile.parquet", "profile", text="again")
    assert [record["stage"] for _, record in ancestors(selected)] == ["select"]
    assert read_record(chain / "results/language/profile.parquet.run.json")["run"] not in before


def test_it_does_not_matter_from_where_one_asks(chain, monkeypatch):
    monkeypatch.chdir(chain / "results/language")
    assert [record["stage"] for _, record in ancestors("beta-0.5/heads.json.run.json")] == ["select", "profile"]


def test_a_broken_record_is_named_and_does_not_hide_its_neighbours(chain):
    folder = chain / "results/language"
    (folder / "a.run.json").write_text("{")
    with pytest.raises(ValueError, match=r"a\.run\.json: not a run record"):
        read_record(folder / "a.run.json")
    assert record_of(folder / "profile.parquet") == folder / "profile.parquet.run.json"


def test_a_record_names_the_scan_backends_that_ran(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "used_backends", set())
    u, A, B = torch.randn(1, 4, 3), -torch.ones(4, 4), torch.randn(1, 4, 3)
    with run_record(tmp_path / "run.json", "train", ["train"], {}):
        scan.selective_scan(u, u, A, B, B, backend="torch")
    assert read_record(tmp_path / "run.json")["scan"] == ["torch"]
