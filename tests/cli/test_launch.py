"""Trainings launched over several processes: how they end, and what they leave."""

import json
import os
import signal
import sys
import time
from functools import partial

import psutil
import pytest

from recurformer.__main__ import main as entry
from recurformer.cli import main
from recurformer.records import read_record
from tests import forks
from tests.one_thread import one_thread

__all__ = ["one_thread"]  # a fork would have only one of several

ONE = {"steps": 24, "batch_size": 4}
TWO = ONE | {"distributed": {"precision": "float32", "processes": 2}}
"""Settings of a training in one process, and in two."""


def checkpoints(folder):
    """Steps of the complete ones."""
    complete = folder.glob("trained.checkpoints/*/checkpoint-*/complete")
    return {int(path.parent.name.removeprefix("checkpoint-")) for path in complete}


def started(call, folder, step):
    """A training in a fork that has written a checkpoint of `step` or later, and the file of what it says of errors."""
    log = folder.with_suffix(".log")
    with log.open("w") as errors, open(os.devnull, "w") as nowhere:
        run = forks.start(call, folder, nowhere, errors)
    while max(checkpoints(folder), default=0) < step:
        assert run.exitcode is None, log.read_text()
        time.sleep(0.05)
    return run, log


def launched(training, folder, step):
    """Such a training over two processes: its launcher, its file of errors, and its processes by rank."""
    launcher, log = started(partial(main.main, training(folder, **TWO)), folder, step)
    found = psutil.Process(launcher.pid).children(recursive=True)
    return launcher, log, {process.environ()["RANK"]: process for process in found if "RANK" in process.environ()}


def end(run, log):
    """The exit code and the lines of a training that ends by itself."""
    run.join()
    return run.exitcode, log.read_text().splitlines()


def all_end(processes):
    """Whether the processes end by themselves; those that do not are killed."""
    left = psutil.wait_procs(processes, timeout=60)[1]
    for process in left:
        process.kill()
    return not left


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_training_whose_launcher_and_then_a_process_are_ended_is_resumed_as_if_undisturbed(training, tmp_path):
    launcher, log, processes = launched(training, tmp_path, 2)
    os.kill(launcher.pid, signal.SIGTERM)
    code, said = end(launcher, log)
    assert said[-1].startswith("recurformer train-hashhop: ended by SIGTERM")
    assert code == 1
    assert all_end(processes.values())

    launcher, log, processes = launched(training, tmp_path, 6)
    processes["1"].kill()
    code, said = end(launcher, log)
    assert code == 1
    assert said[-1] == "recurformer train-hashhop: process 1 of 2: killed by SIGKILL; the others were ended"
    assert not [process for process in processes.values() if process.is_running()]
    assert [path.name for path in tmp_path.iterdir()] == ["trained.checkpoints"]

    code, said = end(*launched(training, tmp_path, 10)[:2])
    assert code == 0
    assert "keeps a run by other settings" not in " ".join(said)
    record = read_record(tmp_path / "run.json")
    assert record["training"].pop("samples_per_second") > 0
    assert record["training"] == {"processes": 2, "strategy": "fsdp"}
    assert {path.name for path in tmp_path.iterdir()} == {"trained", "metrics.jsonl", "run.json"}

    one = tmp_path / "one"
    assert main.main(training(one, **ONE)) == 0
    assert losses(tmp_path) == pytest.approx(losses(one), rel=1e-3)
    assert read_record(one / "run.json")["training"]["processes"] == 1


def test_a_process_gives_its_reason_to_the_launcher(training, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setenv("RANK", "1")
    assert main.main(training(tmp_path, **ONE, distributed={"processes": "many"})) == 1
    assert "--settings distributed.processes = 'many'" in json.loads((tmp_path / "error.json").read_text())["message"]
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_training_that_a_scheduler_ends_says_so_and_is_resumed(training, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["recurformer", *training(tmp_path, **ONE)])
    run, log = started(entry, tmp_path, 4)
    run.terminate()
    code, said = end(run, log)
    assert said[-1] == "recurformer train-hashhop: stopped; the same command continues where it stopped"
    assert "Traceback" not in "".join(said)
    assert code == 130
    assert [path.name for path in tmp_path.iterdir()] == ["trained.checkpoints"]
    assert main.main(training(tmp_path, **ONE)) == 0

    one = tmp_path / "one"
    assert main.main(training(one, **ONE)) == 0
    assert losses(tmp_path) == losses(one)
