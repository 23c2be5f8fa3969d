"""Remove the lock that a killed run left in this folder; called by `make results`.

A lock whose run still works is left alone, as far as this user's processes on this machine tell. Jobs that outlived
their run are stopped: Snakemake would not take their results, and a training resumes from its last checkpoint.
"""

import os
import subprocess
import sys
from pathlib import Path

import psutil

LOCKS = Path(".snakemake/locks")


def working_here(command: str) -> list[psutil.Process]:
    """Other processes that run `command` in this folder."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            called = any(Path(word).name == command for word in process.cmdline())
            if called and process.pid not in own and process.cwd() == os.getcwd():
                found.append(process)
        except psutil.Error:  # ended meanwhile, or another user's
            continue
    return found


def main() -> int:
    """Exit codes: 0 nothing is locked any more, 1 another run works here."""
    if not LOCKS.is_dir() or not any(LOCKS.iterdir()):
        return 0
    if runs := working_here("snakemake"):
        print(f"another run works in this folder (process {runs[0].pid}): wait for it or stop it", file=sys.stderr)
        return 1
    jobs = [job for job in working_here("recurformer") if "--record" in job.cmdline()]
    for job in jobs:
        print(f"stopping a job of a killed run (process {job.pid})", flush=True)
        job.terminate()
    psutil.wait_procs(jobs)
    # the caller's words first: options such as --configfile take all words that follow them
    command = [sys.executable, "-m", "snakemake", *sys.argv[1:], "--quiet", "all", "--unlock"]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
