"""The run record: a JSON file beside a result that says how it came about. It does not know what was computed.

Records form a chain: each names the files that its run read and the runs that had made them. `record_of` goes from a
file to its record, `ancestors` from a record to all before it. A recording holds all records of a study in one file,
`PACK`; each is found there under the place that its file had in the study.
"""

import json
import os
import platform
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, islice
from pathlib import Path
from typing import Any

from recurformer.files import atomic_path

RUNNING: ContextVar[str] = ContextVar("RUNNING", default="")
"""The file to which the run that goes on here will write its record; empty where there is none."""
PACK = "runs.jsonl"
"""The records of a recording, one a line, each with the `place` that its file had below the recording's folder."""
Record = tuple[Path, dict[str, Any]]
"""Place and content of a run record."""
VERSIONS = ("recurformer", "torch", "transformers", "numpy", "pandas", "lm_eval", "snakemake", "mamba_ssm", "kernels")


def _git(*words: str) -> bytes | None:
    """What git says about the repository whose top folder holds this package; None without one, and without git.

    The folders are named: else git would look for a repository above them, or in its variables.
    """
    top = Path(__file__).parents[2]
    command = ["git", "--no-optional-locks", f"--git-dir={top / '.git'}", f"--work-tree={top}", *words]
    try:
        answer = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _tree() -> dict[str, str | bool | None]:
    """The commit of the code, and whether and how the working tree differs from it; None: unknown."""
    commit, status = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return {
        "commit": commit.decode() if commit else None,
        "dirty": None if status is None else bool(status),
        "difference": sha256(_git("diff", "HEAD") or b"").hexdigest() if status else None,
    }


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


def _accelerator() -> dict[str, str | int] | None:
    """Name of the CUDA device and the most memory that tensors took on it, in bytes; None when there were none."""
    torch = sys.modules.get("torch")
    peak = torch.cuda.max_memory_allocated() if torch and torch.cuda.is_available() else 0
    return {"name": torch.cuda.get_device_name(), "peak_memory_bytes": peak} if torch and peak else None


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@lru_cache(maxsize=64)
def _pack(file: Path, modified: int) -> dict[Path, dict[str, Any]]:
    """The records in a pack, by their places."""
    records = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {file.parent / record.pop("place"): record for record in records}


def packed(folder: str | Path) -> dict[Path, dict[str, Any]]:
    """The records of a recording, by their places; none where the folder is no recording."""
    file = Path(folder, PACK)
    return _pack(file, file.stat().st_mtime_ns) if file.is_file() else {}


def read_record(path: str | Path) -> dict[str, Any]:
    """A run record: a file, or one in the pack of a recording.

    Raises:
        ValueError: there is none, or the file is no run record.
    """
    path = Path(path)
    try:
        kept = (packed(folder).get(path) for folder in path.parents)
        if not path.is_file() and (record := next(filter(None, kept), None)):
            return record
        record = json.loads(path.read_text())
        record["run"], record["argv"], record["outputs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a run record ({type(error).__name__}: {error})") from None
    return record


def find_records(*folders: str | Path, damaged: Callable[[Path, Exception], None] = lambda *_: None) -> list[Record]:
    """Place and content of every run record below some folders, in the order of the places.

    Args:
        folders: of results, or of recordings.
        damaged: called with each file that is no run record, though it is named like one, and with the reason.
    """
    found: dict[Path, dict[str, Any]] = {}
    for folder in map(Path, folders):
        for pack in folder.rglob(PACK):
            found |= packed(pack.parent)
        for place in folder.rglob("*run.json"):
            try:
                found[place] = read_record(place)
            except ValueError as error:
                damaged(place, error)
    return sorted(found.items())


def run_name(record: str | Path) -> str:
    """The name of the run with this record: its path from the working directory, without what most records have."""
    return os.path.relpath(record).removesuffix("run.json").rstrip("/.").removeprefix("results/")


def number_text(value: float) -> str:
    """A metric for readers: counts in full, other numbers with four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def final_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """The final metrics of a run, by name; it may have none."""
    return record.get("metrics") or {}


def metrics_text(record: Mapping[str, Any], most: int | None = None) -> str:
    """The final metrics of a run in a line, perhaps only the first ones."""
    metrics = final_metrics(record)
    shown = [f"{name} {number_text(value)}" for name, value in list(metrics.items())[:most]]
    return ", ".join([*shown, f"and {len(metrics) - len(shown)} more"] if len(shown) < len(metrics) else shown)


def record_of(path: str | Path) -> Path | None:
    """The place of the record of the run that wrote a file or folder: beside it, or in the pack of its recording."""
    path = Path(path)
    for place in sorted(path.parent.glob("*run.json")):
        with suppress(ValueError):
            if path.name in read_record(place)["outputs"]:
                return place
    for place, record in chain.from_iterable(packed(folder).items() for folder in path.parents):
        if any(place.parent / name == path for name in record["outputs"] if name.endswith(path.name)):
            return place
    return None


def runs_behind(paths: Iterable[str | Path]) -> list[str]:
    """Ids of the runs that wrote these files, each once; files without a record add none."""
    records = filter(None, map(record_of, paths))
    return list(dict.fromkeys(read_record(record)["run"] for record in records))


def gpus_of(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the CUDA devices that some runs used, each once."""
    return list(dict.fromkeys(record["accelerator"]["name"] for record in records if record["accelerator"]))


def _parents(place: Path, record: Mapping[str, Any]) -> Iterator[Path]:
    """The records of the runs that wrote a record's inputs, where they are still there.

    A file that another run has written since has another record.
    """
    kept = next(filter(None, map(packed, place.parents)), {})
    places = {entry["run"]: where for where, entry in kept.items()}
    for file in record["inputs"]:
        # a recording tells by the run, a study by the path from the folder where the run was
        paths = () if kept else (root / file["path"] for root in place.parents)
        parents = filter(None, chain([places.get(file["run"])], map(record_of, paths)))
        yield from islice((parent for parent in parents if read_record(parent)["run"] == file["run"]), 1)


def ancestors(path: str | Path) -> list[tuple[Path, dict[str, Any]]]:
    """The record at `path`, then the records of all that it rests on, nearest first, each once; absolute paths."""
    found: dict[Path, dict[str, Any]] = {}
    waiting = [Path(path).resolve()]
    while waiting:
        place = waiting.pop(0)
        if place in found:
            continue
        found[place] = read_record(place)
        waiting.extend(_parents(place, found[place]))
    return list(found.items())


@contextmanager
def run_record(
    path: str | Path | None,
    stage: str,
    argv: Sequence[str],
    settings: Mapping[str, Any],
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    program: str = "recurformer",
) -> Iterator[dict[str, Any]]:
    """Write a record to `path` when the block ends well; with no path, only run the block. `argv` are the arguments
    of `program`. The block gets a dict for what else it has found out about its run.

    The record holds: run (id), stage, argv, settings, seed, inputs (each with the id of the run that wrote it), parents
    (those ids), outputs (names in the record's folder), git (commit, dirty, digest of the difference), lock (SHA-256),
    versions, host (system, processor, cores), accelerator (name, peak_memory_bytes), scan (the backends that ran),
    started (UTC), seconds, cpu_seconds, peak_memory_bytes, metrics (the final ones, by name); of a training: training
    (processes, strategy, samples_per_second). A run of several processes is recorded by its first one: the seconds, but
    neither memory nor cpu_seconds, are those of all.
    """
    started, clock, processor_clock = datetime.now(UTC), time.perf_counter(), time.process_time()
    tree, locked = _tree(), Path(__file__).parents[2] / "requirements.lock"
    lock = sha256(locked.read_bytes()).hexdigest() if locked.is_file() else None
    read = [{"path": str(file), "run": next(iter(runs_behind([file])), None)} for file in inputs] if path else []
    found: dict[str, Any] = {}
    token = RUNNING.set(str(path or ""))
    try:
        yield found
    finally:
        RUNNING.reset(token)
    if path is None:
        return
    scan = sys.modules.get("recurformer.model.scan")
    record = {
        "run": str(uuid.uuid4()),
        "stage": stage,
        "argv": [*program.split(), *argv],
        "settings": dict(settings),
        "seed": settings.get("seed"),
        "inputs": read,
        "parents": sorted({file["run"] for file in read if file["run"]}),
        "outputs": [os.path.relpath(file, Path(path).parent) for file in outputs],
        "git": tree,
        "lock": lock,
        "versions": {"python": platform.python_version(), **_versions()},
        "host": {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count()}
        | ({"slurm_job": job} if (job := os.environ.get("SLURM_JOB_ID")) else {}),
        "accelerator": _accelerator(),
        "scan": sorted(scan.used_backends) if scan else [],
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - clock, 2),
        "cpu_seconds": round(time.process_time() - processor_clock, 2),
        "peak_memory_bytes": peak_memory_bytes(),
        **found,
    }
    with atomic_path(path) as scratch:
        scratch.write_text(json.dumps(record, indent=1) + "\n")
