"""Real runs: one killed in the middle of a training goes on when started again; one that is done does nothing."""

import random
import time
from contextlib import contextmanager, suppress

import pandas as pd
import psutil
import pytest
import yaml

from tests import forks
from tests.workflow.dry_runs import ROOT, link_workflow, prepared, snakemake

TARGET = "results/smoke/hashhop/hashhop-tiny/base"
STEPS = 150
MOMENT = round(random.Random(22).uniform(0, 1), 2)
"""Seconds from the first new checkpoint of a run to its end."""


def make_folder(place):
    """A folder with the workflow and a smoke study whose HashHop training takes a while."""
    link_workflow(place, without=["config"])
    study = yaml.safe_load((ROOT / "config/smoke.yaml").read_text())
    study["hashhop"]["pretraining"] |= {"steps": STEPS, "log_every": 5, "save_every": 5}
    (place / "config").mkdir()
    (place / "config/default.yaml").write_text(yaml.safe_dump(study))
    return place


def start(folder):
    with (folder / "run.log").open("w") as log:
        return forks.start(prepared([TARGET, "--cores", "1"]), folder, log, log)


def finish(folder):
    """Run to the end; what Snakemake said."""
    run = start(folder)
    run.join(timeout=200)
    said = (folder / "run.log").read_text()
    assert run.exitcode == 0, said
    return said


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
    run.join()
    for job in jobs:
        with suppress(psutil.NoSuchProcess):  # it may end by itself meanwhile
            job.kill()
    psutil.wait_procs(jobs)


def is_locked(folder):
    """Whether Snakemake refuses to start another run."""
    second = snakemake(folder, TARGET, "--cores", "1")
    return second.returncode == 1 and "Directory cannot be locked" in second.stdout + second.stderr


def checkpoints(folder):
    """Steps of the complete ones."""
    complete = folder.glob(f"{TARGET}.checkpoints/*/checkpoint-*/complete")
    return {int(path.parent.name.removeprefix("checkpoint-")) for path in complete}


def wait_for_a_checkpoint(folder, run, step=0):
    """A complete one of a later step."""
    while max(checkpoints(folder), default=0) <= step:
        assert run.exitcode is None, (folder / "run.log").read_text()
        time.sleep(0.05)


def weights(folder):
    return {path.name: path.read_bytes() for path in (folder / TARGET).iterdir()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_killed_twice_ends_with_the_same_bytes(tmp_path_factory):
    folder = make_folder(tmp_path_factory.mktemp("killed"))
    run = start(folder)
    wait_for_a_checkpoint(folder, run)
    with paused_jobs(run):  # else the training ends meanwhile
        assert is_locked(folder)
        assert run.exitcode is None
    kill(run)
    assert is_locked(folder)
    assert snakemake(folder, "--unlock").returncode == 0
    assert not (folder / TARGET).exists()
    assert 0 < max(checkpoints(folder)) < STEPS

    run, saved = start(folder), max(checkpoints(folder))
    wait_for_a_checkpoint(folder, run, saved)
    time.sleep(MOMENT)
    kill(run)
    assert snakemake(folder, "--unlock").returncode == 0

    finish(folder)
    metrics = pd.read_json(folder / f"{TARGET}.metrics.jsonl", lines=True)
    assert metrics.step.tolist() == list(range(5, STEPS + 1, 5))
    assert not list(folder.glob("results/**/*.checkpoints")) + list(folder.glob("results/**/.unfinished*"))
    undisturbed = make_folder(tmp_path_factory.mktemp("undisturbed"))
    finish(undisturbed)
    assert weights(folder) == weights(undisturbed)

    assert "Nothing to be done" in finish(folder)
