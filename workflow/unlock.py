"""Remove the lock that a killed run left in this folder; called by `make results`.

The lock of a run that still works is left alone. Two things show such a run: this user's processes on this machine, and
the sign of life of a run on another machine. Jobs that outlived their run are stopped: Snakemake would not take their
results, and a training resumes from its last checkpoint.
"""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import psutil
from filelock import FileLock

LOCKS = Path(".snakemake/locks")
ALIVE = Path(".snakemake/alive")
"""Holds the name of a run's machine, and is written again and again while it works (`workflow/rules/progress.smk`)."""
SECONDS_ALIVE = 120
JOBS = {"recurformer": "--record", "run_tests.py": "--record", "benchmarks": "--results"}
"""What rules call, with an option that only they give."""


def called_here(name: str, *options: str) -> list[psutil.Process]:
    """Other processes in this folder whose command has a word of this name, and the options."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            called = any(Path(word).name == name for word in words) and set(options) <= set(words)
            if called and process.pid not in own and process.cwd() == os.getcwd():
                found.append(process)
        except psutil.Error:  # ended meanwhile, or another user's
            continue
    return found


def alive_elsewhere() -> str | None:
    """The name of another machine on which a run has worked in this folder until now."""
    try:
        machine, age = ALIVE.read_text(), time.time() - ALIVE.stat().st_mtime
    except OSError:
        return None
    return machine if machine != platform.node() and age < SECONDS_ALIVE else None


def works(process: psutil.Process) -> bool:
    """Whether it still runs. A zombie has ended; in a container its parent may never remove it."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_locked() -> bool:
    """Whether a run holds this folder, or did when it was killed."""
    return LOCKS.is_dir() and any(LOCKS.iterdir())


def unlock(words: list[str]) -> int:
    """End what a killed run left, and remove its lock; `words` are its targets and options. An exit code of `main`."""
    if runs := called_here("snakemake"):
        print(f"another run works in this folder (process {runs[0].pid}): wait for it or stop it", file=sys.stderr)
        return 1
    if machine := alive_elsewhere():
        print(f"another run works in this folder (on {machine}): wait for it or stop it", file=sys.stderr)
        return 1
    jobs = [job for name, option in JOBS.items() for job in called_here(name, option)]
    for job in jobs:
        print(f"stopping a job of a killed run (process {job.pid})", flush=True)
        job.terminate()
    while any(map(works, jobs)):
        time.sleep(0.1)
    # the caller's words first: options such as --configfile take all words that follow them
    command = [sys.executable, "-m", "snakemake", *words, "--quiet", "all", "--unlock"]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    """Exit codes: 0 nothing is locked any more, 1 another run works here."""
    if not is_locked():
        return 0
    with FileLock(".snakemake/unlocking.lock"):  # who waited here sees the run that the one before has started
        return unlock(sys.argv[1:]) if is_locked() else 0


if __name__ == "__main__":
    sys.exit(main())
