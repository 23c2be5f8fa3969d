"""Which locks of a folder `make results` removes, and which it leaves to the run that holds them."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

UNLOCK = Path(__file__).parents[2] / "workflow/unlock.py"
SNAKEFILE = 'rule all:\n    output: "made"\n    shell: "touch {output}"\n'


@pytest.fixture
def locked(tmp_path):
    """A folder in which a run was killed."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    (tmp_path / ".snakemake/locks/0.output.lock").write_text("made\n")
    return tmp_path


def unlock(folder):
    return subprocess.Popen([sys.executable, UNLOCK, "all"], cwd=folder, stderr=subprocess.PIPE, text=True)


def locks(folder):
    return list(folder.glob(".snakemake/locks/*"))


@pytest.mark.parametrize(
    ("machine", "age", "removed"),
    [("elsewhere", 0, False), ("elsewhere", 600, True), (platform.node(), 0, True), (None, 0, True)],
)
def test_the_lock_of_a_run_on_another_machine_stays_while_it_gives_signs_of_life(machine, age, removed, locked):
    if machine:
        alive = locked / ".snakemake/alive"
        alive.write_text(machine)
        os.utime(alive, (time.time() - age,) * 2)
    process = unlock(locked)
    said = process.communicate()[1]
    assert (process.returncode == 0) == removed == (not locks(locked)), said
    if not removed:
        assert said == "another run works in this folder (on elsewhere): wait for it or stop it\n"


def test_of_two_that_find_the_same_lock_the_second_sees_the_run_of_the_first(locked):
    """The second waits while the first looks and unlocks; meanwhile a run has begun, and locked the folder again."""
    from filelock import FileLock

    with FileLock(locked / ".snakemake/unlocking.lock"):
        second = unlock(locked)
        time.sleep(2)
        assert second.poll() is None
        run = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "snakemake"], cwd=locked)
    said = second.communicate()[1]
    run.kill()
    run.wait()
    assert second.returncode == 1
    assert said == f"another run works in this folder (process {run.pid}): wait for it or stop it\n"
    assert locks(locked)


@pytest.mark.parametrize("words", [["recurformer", "--record", "x"], ["-m", "benchmarks", "scan", "--results", "x"]])
def test_a_job_that_outlived_its_run_is_stopped(words, locked):
    job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *words], cwd=locked)
    process = unlock(locked)
    process.communicate()
    assert process.returncode == 0
    assert job.wait(timeout=5) < 0
