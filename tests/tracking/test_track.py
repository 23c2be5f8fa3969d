"""Importing finished trainings."""

import json
from pathlib import Path

import pytest

from recurformer.cli.main import main


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
