"""Live curves: off unless asked for, and never able to stop or change a training."""

import json
from pathlib import Path

import pytest
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK


def log():
    """The rows of the training's own log."""
    return [json.loads(line) for line in Path("results/a/metrics.jsonl").read_text().splitlines()]


def test_an_unknown_name_is_refused_before_the_training(monkeypatch, mqar, capsys):
    monkeypatch.setenv("RECURFORMER_TRACKERS", "trackio wand")
    assert mqar() == 1
    refusal = capsys.readouterr().err
    assert refusal.startswith("recurformer mqar: RECURFORMER_TRACKERS: there is no tracker 'wand'; there are: ")
    assert "trackio" in refusal and refusal.count("\n") == 1
    assert not list(Path("results").rglob("*.jsonl"))


def test_a_tracker_gets_every_logged_step_under_the_name_of_the_record(monkeypatch, mqar, notebook):
    monkeypatch.setenv("RECURFORMER_TRACKERS", "notebook")
    assert mqar() == 0
    begin, *steps, summary, end = notebook.seen
    assert (begin, end) == (("recurformer", "a"), "end") and "train_runtime" in summary[1]
    assert [step for step, _ in steps] == [row["step"] for row in log()] == [2, 4, 6]
    assert [logs["loss"] for _, logs in steps] == pytest.approx([row["loss"] for row in log()], rel=1e-5)


def failing(notebook, method, times):
    """A tracker whose `method` fails after some calls."""
    calls = []

    def fail(self, *args, **kwargs):
        calls.append(method)
        if len(calls) > times:
            raise (ImportError if method == "__init__" else KeyError)(f"{method} is broken\nand says so at length")

    return type("Failing", (notebook,), {method: fail})


@pytest.mark.parametrize(
    ("method", "times"), [("__init__", 0), ("on_train_begin", 0), ("on_log", 0), ("on_log", 2), ("on_train_end", 0)]
)
def test_a_tracker_that_fails_costs_one_line_and_changes_nothing(monkeypatch, mqar, notebook, capsys, method, times):
    assert mqar() == 0
    alone = Path("results/a/mqar.csv").read_bytes()
    losses = [row["loss"] for row in log()]
    capsys.readouterr()

    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "failing", failing(notebook, method, times))
    monkeypatch.setenv("RECURFORMER_TRACKERS", " failing, notebook notebook")
    assert mqar() == 0
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "tracker" in line]
    assert warning.startswith("tracker failing gave up, the training does not: ") and f"{method} is broken" in warning
    assert Path("results/a/mqar.csv").read_bytes() == alone
    assert [row["loss"] for row in log()] == losses
    assert notebook.seen[-1] == "end", "the other tracker goes on"
