"""`recurformer runs`: every run of a folder, with its settings and final metrics."""

import io
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import tiny_training

from recurformer.cli.main import main
from recurformer.cli.stage import Metric, metrics_of

RECORDED = Path(__file__).parents[2] / "recorded"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with two runs that differ in beta."""
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(tiny_training.mqar("a", beta=0.0)) == main(tiny_training.mqar("b", beta=1.0)) == 0
    return folder


@pytest.fixture
def two(trained, tmp_path, monkeypatch, capsys):
    """A copy of them in the working directory."""
    monkeypatch.chdir(shutil.copytree(trained, tmp_path, dirs_exist_ok=True))
    capsys.readouterr()


def table(capsys, *words):
    """The CSV of `recurformer runs`."""
    assert main(["runs", *words, "--csv"]) == 0
    return pd.read_csv(io.StringIO(capsys.readouterr().out))


def test_a_run_keeps_and_prints_its_final_metrics(mqar, capsys):
    assert mqar() == 0
    rows = pd.read_csv("results/a/mqar.csv")
    expected = {
        f"accuracy/{row.split}/{row.length}/{row.pairs}": row.correct / row.queries for row in rows.itertuples()
    }
    assert json.loads(Path("results/a/run.json").read_text())["metrics"] == expected
    assert "accuracy/test/16/2: " in capsys.readouterr().out


def test_metrics_that_are_no_numbers_are_left_out():
    frame = pd.DataFrame({"model": ["a", "a", "b"], "right": [1, 2, 0], "of": [2, 4, 0]})
    assert metrics_of([Metric("h", "right", over="of", by=["model"]), Metric("m", "right")], frame) == {
        "h/a": 0.5,
        "m": 1.0,
    }


def test_every_run_is_listed(two, capsys):
    assert main(["runs"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[1] for line in shown.splitlines()[2:-1]] == ["mqar", "mqar"]
    assert "accuracy/test/16/2" in shown and shown.endswith("2 of 2 runs\n")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--where", "beta=0"], ["a"]),
        (["--where", "beta>=0.5", "stage=mqar"], ["b"]),
        (["--where", "name!=a"], ["b"]),
        (["--where", "beta<0", "seed=0"], []),
        (["--where", "dirty!=maybe", "name=b"], ["b"]),
        (["--stage", "mqar", "--sort", "beta", "--reverse"], ["b", "a"]),
        (["--sort", "rate"], ["a", "b"]),
    ],
)
def test_runs_are_chosen_and_sorted_by_settings_and_metrics(two, capsys, words, names):
    assert list(table(capsys, "results", *words).name) == names


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["nowhere"], "nowhere: no run record below it; name a folder of results, such as results or recorded/cpu"),
        (["--where", "betta=1"], "betta: no run has such a setting or metric; did you mean beta?"),
        (["--where", "beta"], "--where 'beta': write KEY=VALUE, or another of = != < <= > >="),
        (["--sort", "h_gq"], "h_gq: no run has such a setting or metric"),
        (["--stage", "train"], "--stage train: no such run; there are: mqar"),
        (["diff", "a"], "diff a: give two runs"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(two, capsys, words, refusal):
    assert main(["runs", *words]) == 1
    assert capsys.readouterr().err == f"recurformer runs: {refusal}\n"


def test_a_difference_shows_what_differs_alone(two, capsys):
    assert main(["runs", "diff", "results/a/mqar.csv", "results/b/mqar.csv"]) == 0
    keys = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert "beta" in keys and "run" in keys
    assert not {"rate", "seed", "stage", "training_steps"} & set(keys)
    record = json.loads(Path("results/a/run.json").read_text())
    Path("results/a/again.run.json").write_text(json.dumps(record | {"run": "c", "settings": {
        key: str(value) for key, value in record["settings"].items()}}))  # fmt: skip
    capsys.readouterr()
    assert main(["runs", "diff", "a", "results/a/again.run.json"]) == 0
    *_, first, last = capsys.readouterr().out.splitlines()
    count = len(record["metrics"])
    assert first.startswith("name ")
    assert last == f"{count} of the {count} metrics that both have are equal, to the last digit"
    record = Path("results/b/run.json")
    changed = json.loads(record.read_text())
    changed["versions"]["torch"] = "1.0"
    record.write_text(json.dumps(changed))
    for names in (("a", "b"), ("results/a/run.json", "results/b")):
        assert main(["runs", "diff", *names]) == 0
        assert "torch_version" in capsys.readouterr().out


def test_a_run_with_several_records_has_the_metrics_of_all(two, capsys):
    """As in recordings whose run measured two tasks, of which each file has a record."""
    record = json.loads(Path("results/a/run.json").read_text())
    for name, metrics in (("run.json", {"first": 0.125}), ("other.run.json", {"second": 0.25})):
        Path("results/a", name).write_text(json.dumps(record | {"metrics": metrics}))
    frame = table(capsys)
    assert len(frame) == 2 and frame["run"].is_unique
    both = frame[frame["run"] == record["run"]].iloc[0]
    assert (both["first"], both["second"]) == (0.125, 0.25)
    assert main(["runs", "diff", record["run"], "b"]) == 0
    differing = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[2:])
    assert differing["first"].startswith("0.125") and differing["second"].startswith("0.25")


def test_names_stay_texts_and_truth_values_compare(two, capsys):
    """Else a model 007 would be 7, and no run would be clean."""
    record = json.loads(Path("results/a/run.json").read_text())
    Path("results/a/run.json").write_text(json.dumps(record | {"settings": record["settings"] | {"name": "007"}}))
    assert [len(table(capsys, "--where", f"model={name}")) for name in ("007", "7")] == [1, 0]
    assert set(table(capsys, str(RECORDED), "--where", "dirty=False").dirty) == {False}


def test_runs_are_sorted_by_every_column(capsys):
    for column in table(capsys, str(RECORDED)).columns:
        assert main(["runs", str(RECORDED / "recovery"), "--sort", column]) in {0, 1}
        assert "unexpected" not in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["{", "[]", '{"run": "x", "argv": [], "outputs": []}', None])
def test_a_damaged_record_is_named_and_left_out(two, capsys, damage):
    record = json.loads(Path("results/a/run.json").read_text())
    Path("results/a/run.json").write_text(damage or json.dumps(record | {"metrics": {"h_gq": None}}))
    assert main(["runs"]) == 0
    said = capsys.readouterr()
    assert said.out.endswith("\n1 of 1 runs\n")
    assert said.err.startswith("results/a/run.json: left out, it is no whole run record (")
