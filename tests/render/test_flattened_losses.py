"""Whether the loss of a training has flattened, from its metric log."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recurformer.claims import read_evidence
from recurformer.records import run_record
from recurformer.render.measurements import READERS
from recurformer.render.training import ALLOWED_FALL, fall_of, with_fall

RECORDED = Path(__file__).parents[2] / "recorded/cpu/results"
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
    "language/smollm2-135m/beta-0.5/seed-0/perplexity.csv": False,
    "language/smollm2-135m/beta-0.5/seed-0/metrics.jsonl": False,
    "hashhop/hashhop-llama/beta-0.25/seed-0/hashhop.csv": True,
    "hashhop/hashhop-llama/beta-0.9/seed-0/hashhop.csv": False,
    "hashhop/hashhop-llama/beta-1.0/seed-0/hashhop.csv": True,
    "hashhop/hashhop-qwen2/beta-1.0/seed-0/hashhop.csv": True,
    "mqar/beta-1.0/lr-0.001/seed-0/mqar.csv": False,
    "mqar/beta-0.75/lr-0.003/seed-0/mqar.csv": True,
    "ablations/hashhop/hashhop-llama/heads/ra_i-kv_group-0/beta-0.5/linear/trained/ablation_hashhop.parquet": False,
    "ablations/hashhop/hashhop-llama/heads/ra_i-kv_group-0/beta-0.25/mamba/trained/ablation_hashhop.parquet": True,
}
"""Recorded arm -> whether its loss has flattened. The last one is of a model that another part of the study trained."""


@pytest.mark.parametrize("file", ARMS)
def test_the_rule_decides_every_recorded_arm(file):
    (frame,) = read_evidence("recorded/cpu", [RECORDED / file]).frames.values()
    assert (frame["fall"].unique() <= ALLOWED_FALL).tolist() == [ARMS[file]]
    assert frame["fall"].notna().all()


def test_of_no_recorded_training_nothing_is_known():
    kinds = ("perplexity", "hashhop", "mqar", "ablation_hashhop", "hashhop_sizes", "needle", "continuation")
    files = [file for kind in kinds for file in RECORDED.rglob(f"{kind}.*") if file.suffix in READERS]
    assert len(files) > 80
    unknown = [file for file in files if with_fall(pd.DataFrame({"x": [1]}), file)["fall"].isna().any()]
    # the arm "state" is solved in closed form alone
    without = {"replaced", "evicted", "state"}
    untrained = [file for file in files if without & set(file.parts) or file.parts[-2] == "original"]
    assert set(unknown) < set(untrained)


def test_of_a_training_without_a_log_nothing_is_known(tmp_path):
    rows = pd.DataFrame({"trained": [True, False]})
    assert with_fall(rows, tmp_path / "needle.csv")["fall"].isna().tolist() == [True, False]
    with run_record(tmp_path / "run.json", "needle", [], {}, outputs=[tmp_path / "needle.csv"]):
        pass
    assert with_fall(rows, tmp_path / "needle.csv")["fall"].isna().tolist() == [True, False]
    assert list(with_fall(rows, tmp_path / "cache.csv")) == ["trained"], "no training stands behind a cache"
