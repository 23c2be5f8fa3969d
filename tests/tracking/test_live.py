"""Live tracking: off unless asked for, and never able to stop, slow or change a training."""

import json
import time
from pathlib import Path
from threading import active_count

import pytest

from recurformer import tracking
from recurformer.tracking import live
from recurformer.tracking.live import chosen_trackers, tracked


def log():
    """The rows of the training's own log."""
    return [json.loads(line) for line in Path("results/metrics.jsonl").read_text().splitlines()]


def write(folder, rows):
    """The log that a training keeps in a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_of(notebook):
    (steps,) = notebook.runs.values()
    return sorted(steps)


def test_it_is_off_by_default(tmp_path, monkeypatch, args):
    monkeypatch.delenv("RECURFORMER_TRACKERS", raising=False)
    threads = active_count()
    with tracked(args, tmp_path / "a"):
        assert active_count() == threads


@pytest.mark.parametrize("text", ["trackio mlflow", "trackio,mlflow", " trackio, mlflow,trackio "])
def test_names_are_separated_by_spaces_or_commas(monkeypatch, text):
    monkeypatch.setenv("RECURFORMER_TRACKERS", text)
    assert chosen_trackers() == ["trackio", "mlflow"]


def test_an_unknown_name_is_refused_before_the_training(monkeypatch, mqar, capsys):
    monkeypatch.setenv("RECURFORMER_TRACKERS", "trackio wandb")
    assert mqar() == 1
    refusal = capsys.readouterr().err
    assert refusal == (
        "recurformer mqar: RECURFORMER_TRACKERS: there is no tracker 'wandb'; there are: trackio, mlflow\n"
    )
    assert not list(Path("results").rglob("*.jsonl"))


def test_a_tracker_gets_every_row_of_a_training(monkeypatch, mqar, notebook):
    monkeypatch.setenv("RECURFORMER_TRACKERS", "notebook")
    assert mqar() == 0
    assert rows_of(notebook) == [2, 4, 6]
    (steps,) = notebook.runs.values()
    assert {step: values["loss"] for step, values in steps.items()} == {row["step"]: row["loss"] for row in log()}
    assert notebook.ended == [True]


def failing(notebook, method):
    """A tracker whose `method` fails, every time."""

    def fail(self, *args, **kwargs):
        raise (ImportError if method == "__init__" else KeyError)(f"{method} is broken\nand says so at length")

    return type("Failing", (notebook,), {method: fail})


@pytest.mark.parametrize("method", ["__init__", "open", "log", "finish"])
def test_a_tracker_that_fails_costs_one_line_and_changes_nothing(monkeypatch, mqar, notebook, capsys, method):
    assert mqar() == 0
    alone = Path("results/mqar.csv").read_bytes()
    losses = [row["loss"] for row in log()]
    capsys.readouterr()

    monkeypatch.setitem(tracking.SINKS, "failing", failing(notebook, method))
    monkeypatch.setenv("RECURFORMER_TRACKERS", "failing notebook")
    assert mqar() == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "tracker" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("tracker failing gave up, the training does not: ")
    assert f"{method} is broken" in warnings[0]
    assert Path("results/mqar.csv").read_bytes() == alone
    assert [row["loss"] for row in log()] == losses
    assert rows_of(notebook) == [2, 4, 6], "the other tracker goes on"


def test_a_training_does_not_wait_for_a_tracker(tmp_path, monkeypatch, args, notebook, row, capsys):
    class Slow(notebook):
        def log(self, rows):
            time.sleep(60)

    monkeypatch.setitem(tracking.SINKS, "slow", Slow)
    monkeypatch.setenv("RECURFORMER_TRACKERS", "slow")
    monkeypatch.setattr(live, "PATIENCE", 0.1)
    started = time.perf_counter()
    with tracked(args, tmp_path / "a"):
        write(tmp_path / "a", map(row, range(1, 1001)))
    assert time.perf_counter() - started < 5
    assert capsys.readouterr().err.count("tracker slow gave up") == 1


def test_a_resumed_training_continues_its_run(tmp_path, monkeypatch, args, notebook, row):
    monkeypatch.setenv("RECURFORMER_TRACKERS", "notebook")
    with pytest.raises(KeyboardInterrupt), tracked(args, tmp_path / "a"):
        write(tmp_path / "a", map(row, range(1, 21)))
        raise KeyboardInterrupt
    notebook.runs.popitem()[1].pop(13)  # a row that the kill kept from the tracker
    write(tmp_path / "a", map(row, range(1, 15)))  # what a resumed training leaves of its log
    with tracked(args, tmp_path / "a"):
        write(tmp_path / "a", map(row, range(1, 31)))
    assert rows_of(notebook) == list(range(1, 31))
    assert notebook.ended == [False, True]
