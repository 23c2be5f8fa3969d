"""What a study ran on: machines, versions, commits and the cost of every run, summed up from run records."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Record = Mapping[str, Any]


def minutes(record: Record) -> dict[str, float]:
    """What a run cost: core_minutes (processor time) and gpu_minutes (its whole time, if it held an accelerator)."""
    held = record["seconds"] if record["accelerator"] else 0.0
    return {"core_minutes": record["cpu_seconds"] / 60, "gpu_minutes": held / 60}


def _hosts(records: Iterable[Record]) -> list[dict[str, Any]]:
    counts = Counter(
        (
            record["host"]["processor"],
            record["host"]["cores"],
            record["host"]["system"],
            record["accelerator"]["name"] if record["accelerator"] else None,
        )
        for record in records
    )
    names = ("processor", "cores", "system", "accelerator")
    return [dict(zip(names, host, strict=True)) | {"runs": runs} for host, runs in counts.most_common()]


def environment(records: Iterable[Record]) -> dict[str, Any]:
    """What a ledger of claims says about the runs that it rests on.

    Args:
        records: run records; one that is given twice counts once.

    Returns:
        hosts: processor, cores, system, accelerator (name or None) and number of runs, the most used first;
        versions: package -> version -> number of runs;
        commits: commit -> number of runs;
        locks: SHA-256 of requirements.lock -> number of runs;
        dirty: number of runs whose working tree differed from its commit;
        runs: id -> stage, core_minutes, gpu_minutes.
    """
    unique = list({record["run"]: record for record in records}.values())
    versions: dict[str, Counter[str]] = {}
    for record in unique:
        for package, version in record["versions"].items():
            versions.setdefault(package, Counter())[version] += 1
    return {
        "hosts": _hosts(unique),
        "versions": {package: dict(found.most_common()) for package, found in sorted(versions.items())},
        "commits": dict(Counter(record["git"]["commit"] for record in unique).most_common()),
        "locks": dict(Counter(record["lock"] for record in unique).most_common()),
        "dirty": sum(bool(record["git"]["dirty"]) for record in unique),
        "runs": {record["run"]: {"stage": record["stage"], **minutes(record)} for record in unique},
    }
