"""What rules ask for, by real dry runs, against what the recorded default study really took."""

from collections import defaultdict
from pathlib import Path

import pytest

from recurformer.costs import option
from recurformer.plan import dry_run
from recurformer.records import benchmark_beside, read_record

ROOT = Path(__file__).parents[2]
MOST = 2.2
"""Largest memory that a job asks for over what it took."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """All jobs of the default study and its ablations."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("Snakefile", "workflow", "config", "environment.yml", "profiles"):
        (folder / name).symlink_to(ROOT / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return dry_run(["all", "ablations"], "config/default.yaml", cores=2)


@pytest.fixture(scope="module")
def recorded():
    """Records of the default study by the name that the workflow has for the benchmark beside them."""
    records = map(read_record, sorted((ROOT / "recorded/cpu").rglob("*run.json")))
    return {benchmark_beside(option(record["argv"], "--record")): record for record in records}


def test_every_recorded_job_took_less_than_its_rule_asks_for_and_not_far_less(jobs, recorded):
    found = defaultdict(list)
    for job in jobs:
        if record := recorded.get(job.benchmark):
            ratio = job.requested("mem_mb") / (record["peak_memory_bytes"] / 2**20)
            found[job.rule].append((ratio, job.requested("runtime") - record["seconds"] / 60, job.outputs[0]))
    assert len(found) > 30  # a rule younger than the recording has none yet
    wrong = {rule: rows for rule, rows in found.items() if not 1 <= min(rows)[0] <= max(rows)[0] <= MOST}
    assert not wrong, {rule: (min(rows), max(rows)) for rule, rows in wrong.items()}
    assert all(left > 0 for rows in found.values() for _, left, _ in rows)


def test_no_job_of_a_study_without_cards_asks_for_one(jobs):
    assert not [job for job in jobs if job.gpu]
