"""Real runs: one killed in the middle of a training goes on when started again; one that is done does nothing."""

import random
import subprocess
import sys
import time
from contextlib import contextmanager

import pandas as pd
import psutil
import pytest
import yaml

from tests.workflow.dry_runs import ROOT, link_workflow, snakemake

TARGETS = [f"results/smoke/hashhop/hashhop-tiny/{name}" for name in ("base", "profile.parquet")]
STEPS = 400
DRAWN = random.Random(22)
MOMENTS = [round(DRAWN.uniform(0, 1), 2) for _ in range(2)]
"""Seconds from the first new checkpoint of a run to its end."""


def make_folder(place):
    """A folder with the workflow and a smoke study whose HashHop training takes a while."""
    link_workflow(place, without=["config"])
    study = yaml.safe_load((ROOT / "config/smoke.yaml").read_text())
    study["hashhop"]["pretraining"] |= {"steps": STEPS, "log_every": 5, "save_every": 5}
    (place / "config").mkdir()
    (place / "config/default.yaml").write_text(yaml.safe_dump(study))
    return place


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path)


def start(folder, name="run.log"):
    command = [sys.executable, "-m", "snakemake", *TARGETS, "--cores", "1"]
    with (folder / name).open("w") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)


def finish(folder):
    """Run to the end; what Snakemake said."""
    run = start(folder)
    assert run.wait(timeout=200) == 0, (folder / "run.log").read_text()
    return (folder / "run.log").read_text()


@contextmanager
def paused_jobs(run):
    """Stops what a run has started, and lets it go on afterwards."""
    jobs = psutil.Process(run.pid).children(recursive=True)
    for job in jobs:
        job.suspend()
    yield
    for job in jobs:
        job.resume()


def kill(run):
    """End a run and its jobs at once, as a loss of power does."""
    jobs = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.wait()
    for job in jobs:
        job.kill()
    psutil.wait_procs(jobs)


def is_locked(folder):
    """Whether Snakemake refuses to start another run."""
    second = start(folder, "second.log")
    return second.wait(timeout=100) == 1 and "Directory cannot be locked" in (folder / "second.log").read_text()


def checkpoints(folder):
    """Steps of the complete ones."""
    complete = folder.glob(f"{TARGETS[0]}.checkpoints/*/checkpoint-*/complete")
    return {int(path.parent.name.removeprefix("checkpoint-")) for path in complete}


def wait_for_a_checkpoint(folder, run, step=0):
    """A complete one of a later step."""
    while max(checkpoints(folder), default=0) <= step:
        assert run.poll() is None, (folder / "run.log").read_text()
        time.sleep(0.05)


def results(folder):
    """The bytes of the weights, and of what was measured with them."""
    base, profile = (folder / target for target in TARGETS)
    return {path.name: path.read_bytes() for path in [*base.iterdir(), profile]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_killed_again_and_again_ends_with_the_same_bytes(folder, tmp_path_factory):
    run = start(folder)
    wait_for_a_checkpoint(folder, run)
    with paused_jobs(run):  # else the training ends meanwhile
        assert is_locked(folder)
        assert run.poll() is None
    kill(run)
    assert is_locked(folder)
    assert snakemake(folder, "--unlock").returncode == 0
    assert not (folder / TARGETS[0]).exists()
    assert 0 < max(checkpoints(folder)) < STEPS

    for seconds in MOMENTS:
        run, saved = start(folder), max(checkpoints(folder))
        wait_for_a_checkpoint(folder, run, saved)
        time.sleep(seconds)
        kill(run)
        assert snakemake(folder, "--unlock").returncode == 0

    finish(folder)
    metrics = pd.read_json(folder / f"{TARGETS[0]}.metrics.jsonl", lines=True)
    assert metrics.step.tolist() == list(range(5, STEPS + 1, 5))
    assert not list(folder.glob("results/**/*.checkpoints")) + list(folder.glob("results/**/.unfinished*"))
    undisturbed = make_folder(tmp_path_factory.mktemp("undisturbed"))
    finish(undisturbed)
    assert results(folder) == results(undisturbed)

    assert "Nothing to be done" in finish(folder)
