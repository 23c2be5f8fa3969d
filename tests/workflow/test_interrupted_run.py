"""Real runs: one killed in the middle of a training goes on when started again; one that is done does nothing."""

import os
import signal
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


def start(folder, **options):
    command = [sys.executable, "-m", "snakemake", TARGET, "--cores", "1"]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def unlock(folder):
    command = [sys.executable, str(ROOT / "workflow/unlock.py"), TARGET]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def wait_for_a_checkpoint(folder, run):
    while not list(folder.glob(f"{TARGET}.checkpoints/*/checkpoint-*/seal.json")):
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(folder):
    run = start(folder, start_new_session=True)
    wait_for_a_checkpoint(folder, run)
    assert unlock(folder).returncode == 1, "the lock of a run that works must stay"
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    assert not (folder / TARGET).exists()
    assert unlock(folder).returncode == 0
    saved = max(int(path.name.split("-")[1]) for path in folder.glob(f"{TARGET}.checkpoints/*/checkpoint-*"))
    assert saved < STEPS

    again = start(folder)
    output, _ = again.communicate(timeout=200)
    assert again.returncode == 0, output
    assert (folder / TARGET / "config.json").is_file()
    metrics = pd.read_csv(folder / f"{TARGET}.metrics.csv")
    assert metrics.step.tolist() == list(range(5, STEPS + 1, 5))
    assert not list(folder.glob("results/**/*.checkpoints")) + list(folder.glob("results/**/.unfinished*"))

    idle = start(folder)
    output, _ = idle.communicate(timeout=60)
    assert idle.returncode == 0
    assert "Nothing to be done" in output
