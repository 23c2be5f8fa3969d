"""A training whose time is up stops after a checkpoint, and many such pieces make the run that was never stopped."""

import json
import os

import pytest
import torch

from recurformer.cli.main import main
from recurformer.train.time_limit import VARIABLE, StoppedForTime, TimeLimit
from recurformer.train.trainer import train

SETTINGS = {"steps": 10, "batch_size": 4, "learning_rate": 1e-2, "log_every": 3, "save_every": 6}


def trained(make_model, successors, folder):
    model = make_model(dropout=0.3)
    rows = train(model, successors(), output_dir=folder, **SETTINGS)
    return torch.cat([weight.flatten() for weight in model.parameters()]), rows


def test_pieces_end_with_the_same_bytes(make_model, successors, tmp_path, monkeypatch):
    whole, rows = trained(make_model, successors, tmp_path / "whole")
    monkeypatch.setenv(VARIABLE, "1e-6")
    for step in (3, 6, 9):
        with pytest.raises(StoppedForTime, match=f"minutes at step {step} of 10: run again to resume$"):
            trained(make_model, successors, tmp_path / "pieces")
    pieces, again = trained(make_model, successors, tmp_path / "pieces")
    assert torch.equal(whole, pieces)
    columns = ["step", "loss", "learning_rate", "tokens"]
    assert again[columns].equals(rows[columns])


def test_enough_time_stops_nothing(make_model, successors, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "1e6")
    trained(make_model, successors, tmp_path)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-6"]


def test_what_took_long_must_fit_once_more(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("recurformer.train.time_limit.time.time", lambda: clock[0])
    monkeypatch.setenv(VARIABLE, "9")
    limit = TimeLimit()
    limit.began = 1000.0
    asked = []
    for passed in (200, 200, 100, 1):
        clock[0] += passed
        asked.append(limit.leaves_no_time())
    assert asked == [False, True, True, False]


@pytest.mark.parametrize("given", ["soon", "0", "-3", "nan"])
def test_no_minutes_are_refused(given, monkeypatch):
    monkeypatch.setenv(VARIABLE, given)
    with pytest.raises(ValueError, match=f"RECURFORMER_MINUTES={given}: minutes are a positive number"):
        TimeLimit()


def test_a_stage_says_so_in_one_line_and_leaves_its_outputs_unwritten(tmp_path, capsys, monkeypatch):
    words = ["--train", "16:2", "--test", "16:2", "--hidden-size", "16", "--heads", "2", "--kv-heads", "2"]
    words += ["--head-dim", "8", "--vocabulary", "32", "--test-samples", "2", "--beta", "0.5", "--rate", "0.01"]
    words += ["--training-steps", "4", "--training-batch-size", "2", "--training-learning-rate", "0.01"]
    words += ["--training-log-every", "2", "--mamba-dt-rank", "4"]

    def run():
        return main(["mqar", str(tmp_path / "mqar.csv"), "--metrics", str(tmp_path / "metrics.jsonl"), *words])

    monkeypatch.setenv(VARIABLE, "1e-6")
    assert run() == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("recurformer mqar: stopped after ")
    assert error.endswith(" minutes at step 2 of 4: run again to resume")
    assert os.listdir(tmp_path) == ["mqar.csv.checkpoints"]
    monkeypatch.delenv(VARIABLE)
    assert run() == 0
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4]
