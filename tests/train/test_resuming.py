"""Interrupted trainings: what a new run takes up, and what it passes over."""

import json

import pytest
import torch

from recurformer.records import find_records
from recurformer.train.trainer import train

SETTINGS = {"steps": 12, "batch_size": 4, "learning_rate": 1e-2, "log_every": 2, "save_every": 4}


def same_weights(left, right) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


def interrupted(make_model, successors, folder, at_item, **settings):
    with pytest.raises(KeyboardInterrupt):
        train(make_model(), successors(stop_at=at_item), output_dir=folder, **settings)


@pytest.mark.parametrize(
    ("change", "at_item"),
    [
        ({}, 3),
        ({"schedule": "one_cycle", "gradient_accumulation": 2}, 23),
        ({"gradient_checkpointing": True, "log_every": 3}, 47),
        ({"dropout": 0.3}, 47),
    ],
)
def test_a_resumed_run_ends_with_the_same_bytes(make_model, successors, tmp_path, change, at_item):
    dropout = change.get("dropout", 0.0)
    settings = SETTINGS | {key: value for key, value in change.items() if key != "dropout"}
    whole = make_model(dropout=dropout)
    rows = train(whole, successors(), output_dir=tmp_path / "whole", **settings)

    interrupted(lambda: make_model(dropout=dropout), successors, tmp_path / "cut", at_item, **settings)
    seen = []

    class Watched(successors):
        def __getitem__(self, index):
            seen.append(index)
            return super().__getitem__(index)

    resumed = make_model(dropout=dropout)
    again = train(resumed, Watched(), output_dir=tmp_path / "cut", **settings)
    assert same_weights(whole, resumed)
    assert not same_weights(whole, make_model(dropout=dropout))
    columns = ["step", "loss", "learning_rate", "tokens"]
    assert again[columns].equals(rows[columns])
    if at_item > 40:
        assert min(seen[1:]) >= 24  # item 0 is read for the run's description; the others of the first steps are not
    lines = (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == rows.step.tolist()


def test_a_half_written_checkpoint_is_passed_over(make_model, successors, tmp_path):
    whole = make_model()
    train(whole, successors(), output_dir=tmp_path / "whole", **SETTINGS)
    interrupted(make_model, successors, tmp_path / "cut", 45, **SETTINGS)
    newest, *others = sorted((tmp_path / "cut").glob("checkpoint-*"), key=lambda path: -int(path.name[11:]))
    assert (newest.name, [path.name for path in others]) == ("checkpoint-8", ["checkpoint-4"])
    for file in ("complete", "optimizer.pt"):
        (newest / file).unlink()
    assert find_records(tmp_path, damaged=pytest.fail) == []  # no file of a state is taken for a run record
    resumed = make_model()
    train(resumed, successors(), output_dir=tmp_path / "cut", **SETTINGS)
    assert same_weights(whole, resumed)


def test_other_settings_data_or_weights_start_again(make_model, successors, tmp_path):
    interrupted(make_model, successors, tmp_path / "run", 45, **SETTINGS)
    for change, seed, model_seed in [({"steps": 13}, 0, 0), ({}, 1, 0), ({}, 0, 1)]:
        fresh, reused = make_model(model_seed), make_model(model_seed)
        train(fresh, successors(seed), output_dir=tmp_path / f"fresh-{seed}-{model_seed}-{change}", **SETTINGS | change)
        rows = train(reused, successors(seed), output_dir=tmp_path / "run", **SETTINGS | change)
        assert same_weights(fresh, reused)
        assert rows.step.iloc[0] == 2


@pytest.mark.parametrize("name", ["checkpoint-500/weights", "metrics.jsonl"])
def test_what_other_programs_left_is_not_removed(make_model, successors, tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("years of work")
    (tmp_path / "run.json").write_text('{"run": "a run record"}')
    with pytest.raises(ValueError, match="not of a training that could be resumed here; choose another output_dir"):
        train(make_model(), successors(), output_dir=tmp_path, **SETTINGS)
    assert (tmp_path / name).read_text() == "years of work"
