"""Real runs: one killed in the middle of a training goes on when started again; one that is done does nothing."""

import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).parents[2]
TARGET = "results/smoke/hashhop/hashhop-tiny/base"
STEPS = 400


@pytest.fixture
def folder(tmp_path):
    """A folder with the workflow and a smoke study whose HashHop training takes a while."""
    for name in ("Snakefile", "workflow", "environment.yml", "profiles"):
        (tmp_path / name).symlink_to(ROOT / name)
    study = yaml.safe_load((ROOT / "config/smoke.yaml").read_text())
    study["hashhop"]["pretraining"] |= {"steps": STEPS, "log_every": 5, "save_every": 5}
    (tmp_path / "config").mkdir()
    (tmp_path / "config/default.yaml").write_text(yaml.safe_dump(study))
    return tmp_path


def start(folder):
    command = [sys.executable, "-m", "snakemake", TARGET, "--cores", "1"]
    with (folder / "run.log").open("w") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)


def finish(folder):
    """Run to the end; what Snakemake said."""
    run = start(folder)
    assert run.wait(timeout=200) == 0, (folder / "run.log").read_text()
    return (folder / "run.log").read_text()


def unlock(folder):
    command = [sys.executable, str(ROOT / "workflow/unlock.py"), TARGET]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def wait_for_a_checkpoint(folder, run):
    while not list(folder.glob(f"{TARGET}.checkpoints/*/checkpoint-*/seal.json")):
        assert run.poll() is None, (folder / "run.log").read_text()
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(folder):
    run = start(folder)
    wait_for_a_checkpoint(folder, run)
    assert unlock(folder).returncode == 1, "the lock of a run that works must stay"
    run.kill()
    run.wait()
    unlocked = unlock(folder)
    assert unlocked.returncode == 0, unlocked.stderr
    assert "stopping a job of a killed run" in unlocked.stdout
    assert not (folder / TARGET).exists()
    saved = max(int(path.name.split("-")[1]) for path in folder.glob(f"{TARGET}.checkpoints/*/checkpoint-*"))
    assert saved < STEPS

    finish(folder)
    assert (folder / TARGET / "config.json").is_file()
    metrics = pd.read_json(folder / f"{TARGET}.metrics.jsonl", lines=True)
    assert metrics.step.tolist() == list(range(5, STEPS + 1, 5))
    assert not list(folder.glob("results/**/*.checkpoints")) + list(folder.glob("results/**/.unfinished*"))

    assert "Nothing to be done" in finish(folder)
