"""Importing finished trainings; how runs are named, grouped and told apart."""

import json
from pathlib import Path

import pytest

from recurformer.cli.main import main
from recurformer.tracking.run import Run


@pytest.fixture
def study(mqar, notebook):
    """The results of one finished training, in the working directory."""
    assert mqar() == 0
    return Path("results")


def track(*words):
    return main(["track", "results", "--to", "notebook", *words])


def test_a_study_is_imported_once_however_often(study, notebook, capsys):
    for _ in range(2):
        assert track() == 0
        assert capsys.readouterr().out.endswith("notebook: 1 runs, 3 rows\n")
    ((key, steps),) = notebook.runs.items()
    assert key[1] == json.loads((study / "run.json").read_text())["run"]
    rows = [json.loads(line) for line in (study / "metrics.jsonl").read_text().splitlines()]
    assert {step: values["loss"] for step, values in steps.items()} == {row["step"]: row["loss"] for row in rows}
    assert notebook.names[key].startswith("mqar/beta-0.5/lr-0.01/seed-0/")


def test_an_import_takes_the_place_of_the_live_run(mqar, notebook, monkeypatch):
    monkeypatch.setenv("RECURFORMER_TRACKERS", "notebook")
    assert mqar() == 0
    (live,) = notebook.runs
    assert track() == 0
    (imported,) = notebook.runs
    assert imported[0] == live[0]
    assert imported[1] != live[1]
    assert notebook.names[imported] == notebook.names[live]


def test_running_trainings_and_logs_without_a_record_are_left_out(study, notebook, capsys):
    for place in ("trained.checkpoints/0123/metrics.jsonl", ".unfinished-x/metrics.jsonl"):
        (study / place).parent.mkdir(parents=True)
        (study / place).write_text("half a line")
    (study / "other.metrics.jsonl").write_text("")
    assert track() == 0
    assert len(notebook.runs) == 1
    assert capsys.readouterr().err == ("results/other.metrics.jsonl: left out, no run record beside it names it\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere"], "nowhere: no such folder"),
        ([".", "--to", "wandb"], "there is no tracker 'wandb'; there are: trackio, mlflow"),
    ],
)
def test_what_cannot_be_imported_is_refused(capsys, words, reason):
    assert main(["track", *words]) == 1
    assert capsys.readouterr().err == f"recurformer track: {reason}\n"


def test_a_tracker_that_refuses_is_named_in_one_line(study, notebook, capsys, monkeypatch):
    monkeypatch.setattr(notebook, "log", lambda self, rows: 1 / 0)
    assert track() == 1
    refusal = capsys.readouterr().err
    assert refusal.startswith("recurformer track: notebook did not take mqar/beta-0.5/lr-0.01/seed-0/")
    assert refusal.count("\n") == 1


TEXT = {"name": "smollm2-135m", "beta": 0.5, "seed": 0}


def run(stage="train", settings=TEXT, metrics="results/text/metrics.jsonl", attempt="a"):
    return Run.of(stage, settings, metrics, attempt)


@pytest.mark.parametrize(
    ("stage", "settings", "group", "name"),
    [
        ("train", TEXT, "text/smollm2-135m", "text/smollm2-135m/beta-0.5/seed-0/"),
        ("train-hashhop", TEXT, "hashhop/smollm2-135m", "hashhop/smollm2-135m/beta-0.5/seed-0/"),
        ("train_hashhop", TEXT, "hashhop/smollm2-135m", "hashhop/smollm2-135m/beta-0.5/seed-0/"),
        ("mqar", {"beta": 1.0, "rate": 0.003, "seed": 2}, "mqar", "mqar/beta-1.0/lr-0.003/seed-2/"),
    ],
)
def test_a_run_is_named_by_what_the_study_varies(stage, settings, group, name):
    found = run(stage, settings)
    assert found.group == group
    assert found.name.startswith(name)


def test_two_results_are_two_runs_whatever_their_settings():
    base, studied = run(metrics="results/tiny/base.metrics.jsonl"), run(metrics="results/tiny/metrics.jsonl")
    assert base.place != studied.place
    assert base.name != studied.name
    assert "/base." in base.name


def test_a_result_is_the_same_however_its_path_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(metrics="a/metrics.jsonl").place == run(metrics=tmp_path / "b" / ".." / "a" / "metrics.jsonl").place


def test_settings_of_the_machine_are_left_out():
    settings = TEXT | {"threads": 4, "record": "run.json", "checkpoints": "/tmp/x", "windows": None, "stage": "train"}
    assert run(settings=settings).config == TEXT


def test_a_stage_that_trains_nothing_is_refused():
    with pytest.raises(ValueError, match=r"'cache' trains nothing; these do: train, train-hashhop, mqar"):
        run(stage="cache")
