"""A disk that is full or a place that cannot be written is one line, and nothing half-written stays."""

import resource

import pytest

LIMIT = 2048
"""Bytes that a file may have: a disk that fills up while it is written."""
TRAIN = (
    "train backbone out --metrics out.jsonl --name x --articles articles.parquet --tokens 16 --steps 2 --batch-size 1"
    " --learning-rate 0.1"
)
WRITES = {
    "a checkpoint": "convert backbone out --heads heads.json --mixer window",
    "a new checkpoint": (
        "backbone out --downloads . --source random --architecture llama --hidden-size 16 --layers 2 --heads 2 "
        "--kv-heads 2 --head-dim 8 --tokenizer byte"
    ),
    "a profile": "profile backbone out.parquet --articles articles.parquet --name x --samples 8 --tokens 99 --window 4",
    "a figure": "figure figure6 profile.parquet --out out.svg",
    "a picture": "figure figure6 profile.parquet --out out.png",
    "a table of measurements": "pyramidinfer out.csv --lengths " + " ".join(map(str, range(1000, 1100))),
    "a ledger": "claims profile.parquet --out out.json",
    "a trained model": TRAIN,
    "a checkpoint of a training": f"{TRAIN} --save-every 1",
}


@pytest.fixture
def full_disk():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("what", WRITES)
def test_no_space_is_left(what, refuses, world, full_disk):
    refuses(world, WRITES[what].split(), "File too large")


def test_a_record_that_cannot_be_written(refuses, world):
    refuses(world, ["study", "--describe", "--record", "heads.json/run.json"], "heads.json/run.json: cannot be written")
