"""Whether the loss of a training has flattened, from its metric log."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recurformer.cli.measure import fall_behind
from recurformer.records import run_record
from recurformer.results.frames import packed_frames, packed_rows
from recurformer.results.learned import ALLOWED_FALL
from recurformer.train.trainer import fall_of

RECORDED = Path(__file__).parents[2] / "recorded/cpu"
NOISE = np.random.default_rng(0).normal(size=1000)


@pytest.mark.parametrize(
    ("losses", "low", "high"),
    [
        (np.full(40, 2.0), 0.0, 0.0),
        (np.linspace(4, 2, 40), 0.5, 0.7),
        (2.0 + 0.05 * NOISE, 0.0, ALLOWED_FALL),  # of the paper study: 10,000 steps, every tenth logged
        (2.0 + 0.5 * NOISE[:120], ALLOWED_FALL, 0.5),  # of the default study: 120 steps of few tokens
        (np.r_[np.linspace(9, 2, 500), np.full(500, 2.0)], 0.0, 0.0),
    ],
)  # fmt: skip
def test_the_fall_is_its_largest_likely_one(losses, low, high):
    assert low <= fall_of(losses) <= high


def test_a_log_of_few_lines_says_nothing():
    assert math.isnan(fall_of(np.full(7, 2.0)))


ARMS = {
    "language/smollm2-135m/heads/ra_i-kv_group-0/beta-0.5/mamba/seed-0/perplexity.csv": False,
    "language/smollm2-135m/heads/ra_i-kv_group-0/beta-0.5/mamba/seed-0/metrics.jsonl": False,
    "hashhop/hashhop-llama/heads/ra_i-kv_group-0/beta-0.25/mamba/seed-0/hashhop.parquet": True,
    "hashhop/hashhop-llama/heads/ra_i-kv_group-0/beta-0.9/mamba/seed-0/hashhop.parquet": False,
    "hashhop/hashhop-llama/heads/ra_i-kv_group-0/beta-1.0/mamba/seed-0/hashhop.parquet": True,
    "hashhop/hashhop-qwen2/heads/ra_i-kv_group-0/beta-1.0/mamba/seed-0/hashhop.parquet": True,
    "mqar/beta-1.0/lr-0.001/seed-0/mqar.csv": False,
    "mqar/beta-0.75/lr-0.003/seed-0/mqar.csv": True,
    "hashhop/hashhop-llama/heads/ra_i-kv_group-0/beta-0.5/linear/seed-0/hashhop.parquet": False,
    "hashhop/hashhop-llama/combined/beta-0.5/h2o/seed-0/hashhop.parquet": False,
}
"""Recorded arm -> whether its loss has flattened. The last one is of the cache of a model that another subject is."""


@pytest.mark.parametrize("file", ARMS)
def test_the_rule_decides_every_recorded_arm(file):
    falls = packed_rows(RECORDED / "results" / file)["fall"]
    assert (falls.unique() <= ALLOWED_FALL).tolist() == [ARMS[file]]
    assert falls.notna().all()


def test_of_no_recorded_training_nothing_is_known():
    kinds = ("perplexity", "hashhop", "mqar", "hashhop_sizes", "needle", "continuation")
    rows = pd.concat([packed_frames(RECORDED)[kind] for kind in kinds])
    files = rows.groupby("file")["fall"].agg(lambda falls: falls.isna().any())
    assert len(files) > 80
    # the arm "state" is solved in closed form alone
    assert all("/state/" in file for file in files.index[files])


def test_a_measurement_says_how_the_training_of_its_model_ended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("trained", "pooled", "other"):
        (tmp_path / name).mkdir()
    assert math.isnan(fall_behind("trained"))
    with run_record("trained.run.json", "train", [], {}, outputs=["trained"]) as record:
        record["metrics"] = {"tokens_seen": 9, "fall": 0.25}
    with run_record("pooled.run.json", "pool-kv", [], {}, inputs=["trained"], outputs=["pooled"]):
        pass
    assert fall_behind("trained") == fall_behind("pooled") == 0.25
    (tmp_path / "again").mkdir()
    with run_record("again.run.json", "train", [], {}, inputs=["trained"], outputs=["again"]) as record:
        record["metrics"] = {"tokens_seen": 9}
    assert math.isnan(fall_behind("again")), "the training before had flattened, and nobody knows of this one"
    assert math.isnan(fall_behind("other"))
