"""A disk that is full or a place that cannot be written is one line, and nothing half-written stays."""

import resource
import shlex

import pytest

from recurformer.cli.main import STAGES
from recurformer.cli.stage import OutputFolder

LIMIT = 2048
"""Bytes that a file may have: a disk that fills up while it is written."""
TRAIN = (
    "train backbone out --metrics out.jsonl --name x --articles articles.parquet --tokens 16"
    " --settings '{{steps: 2, batch_size: 1, learning_rate: 0.1, save_every: {}}}'"
)
WRITES = {
    "a checkpoint": "convert backbone out --heads heads.json --mixer window",
    "a profile": "profile backbone out.parquet --articles articles.parquet --name x"
    " --settings '{samples: 8, tokens: 99, window: 4}'",
    "a figure": "figure figure6 profile.parquet --out out.svg",
    "a ledger": "claims profile.parquet --out out.json",
    "a trained model": TRAIN.format(200),
    "a checkpoint of a training": TRAIN.format(1),
}


@pytest.fixture
def full_disk():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("what", WRITES)
def test_no_space_is_left(what, refuses, world, full_disk):
    refuses(world, shlex.split(WRITES[what]), "File too large")


def test_a_record_that_cannot_be_written(refuses, world):
    refuses(world, ["study", "--describe", "--record", "heads.json/run.json"], "heads.json/run.json: cannot be written")


RANDOM = (
    "backbone thesis --downloads . --settings '{source: random, architecture: llama, hidden_size: 16, layers: 2,"
    " heads: 2, kv_heads: 2, head_dim: 8, tokenizer: byte}'"
)
RECIPE = "--settings '{steps: 1, batch_size: 1, learning_rate: 0.1}'"
TEXT = "--metrics m.jsonl --name x --articles articles.parquet --tokens 16"
FOLDERS = {
    "adapt": "adapt backbone thesis --text articles.parquet",
    "backbone": RANDOM,
    "convert": "convert backbone thesis --heads heads.json",
    "export": "export converted thesis",
    "pool-kv": "pool-kv backbone thesis --kv-heads 1",
    "train": f"train backbone thesis {TEXT} {RECIPE}",
    "train-copying": "train-copying backbone thesis --articles articles.parquet --metrics m.jsonl --name x --settings"
    " '{steps: 1, batch_size: 1, learning_rate: 0.1, words: 2, lengths: [8]}'",
    "train-hashhop": f"train-hashhop backbone thesis --metrics m.jsonl --name x {RECIPE}",
    "recover": f"recover backbone thesis {TEXT} {RECIPE} --arm x --heads heads.json --recovery r.csv"
    " --layer-errors l.csv",
}
"""Stage that writes a folder -> its words."""


def folder_of(stage):
    """The name of the folder that a stage writes, if it writes one."""
    return next((action.dest for action in stage.parser()._actions if action.type is OutputFolder), None)


def test_all_stages_that_write_a_folder_are_listed():
    assert set(FOLDERS) == {name for name, stage in STAGES.items() if folder_of(stage)}


@pytest.mark.parametrize("stage", FOLDERS)
def test_a_folder_with_work_of_the_user_is_not_replaced(stage, refuses, world):
    (world / "thesis").mkdir()
    (world / "thesis/thesis.tex").write_text("years of work")
    for work in ("backbone", "converted"):  # which would fail without its input
        (world / work / "config.json").unlink()
    words = ["./thesis/" if word == "thesis" else word for word in shlex.split(FOLDERS[stage])]
    refuses(world, words, "holds thesis.tex, which no earlier run wrote; name a new folder")


def test_an_input_is_no_output(refuses, world):
    refuses(world, ["convert", "backbone", "backbone", "--heads", "heads.json"], "backbone: holds an input of this")
    refuses(world, ["select", "profile.parquet", "backbone", "--beta", "0.5"], "backbone: is a folder; name a file")


def test_a_record_replaces_nothing_but_a_record(refuses, world):
    (world / "thesis.tex").write_text("years of work")
    words = ["convert", "backbone", "new", "--heads", "heads.json", "--record"]
    refuses(world, [*words, "thesis.tex"], "thesis.tex: not a run record")
    refuses(world, [*words, "heads.json"], "heads.json: is an input of this command")
    refuses(world, [*words, "backbone"], "backbone: is an input of this command")
    refuses(world, [*words, "converted"], "converted: not a run record")
    refuses(world, [*words, "new/run.json"], "new/run.json: lies in new, which this command writes")


@pytest.mark.parametrize("place", ["out", "./out/state"])
def test_the_state_of_a_run_lies_outside_of_what_it_writes(place, refuses, world):
    """Else the run would refuse its own files at its end."""
    (world / "backbone/config.json").unlink()
    words = shlex.split("adapt backbone out --text articles.parquet --checkpoints")
    refuses(world, [*words, place], f"--checkpoints {place}: lies in out, which this command writes; name another")
