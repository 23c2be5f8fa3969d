"""The run record: a JSON file beside a result that says how it came about. It does not know what was computed."""

import json
import os
import platform
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recurformer.files import atomic_path

VERSIONS = ("recurformer", "torch", "transformers", "numpy", "pandas", "lm_eval", "snakemake", "mamba_ssm")


def _git(*words: str) -> str | None:
    here = Path(__file__).parent
    answer = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


def _versions() -> dict[str, str]:
    found = {}
    for name in VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _accelerator() -> str | None:
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch and torch.cuda.is_available() else None


def _lock_digest() -> str | None:
    lock = Path(__file__).parents[2] / "requirements.lock"
    return sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def run_record(path: str | Path | None, stage: str, argv: Sequence[str], settings: Mapping[str, Any]) -> Iterator[None]:
    """Write a record to `path` when the block ends well; with no path, only run the block.

    The record holds: run (id), stage, argv, settings, git (commit, dirty), lock (SHA-256), versions, host (system,
    processor, cores, accelerator), started (UTC), seconds, cpu_seconds, peak_memory_bytes.
    """
    started, clock, processor_clock = datetime.now(UTC), time.perf_counter(), time.process_time()
    yield
    if path is None:
        return
    status = _git("status", "--porcelain")
    record = {
        "run": str(uuid.uuid4()),
        "stage": stage,
        "argv": ["recurformer", *argv],
        "settings": dict(settings),
        "git": {"commit": _git("rev-parse", "HEAD"), "dirty": bool(status) if status is not None else None},
        "lock": _lock_digest(),
        "versions": {"python": platform.python_version(), **_versions()},
        "host": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "accelerator": _accelerator(),
        },
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - clock, 2),
        "cpu_seconds": round(time.process_time() - processor_clock, 2),
        "peak_memory_bytes": peak_memory_bytes(),
    }
    with atomic_path(path) as scratch:
        scratch.write_text(json.dumps(record, indent=1) + "\n")
