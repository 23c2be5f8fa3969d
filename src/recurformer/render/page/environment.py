"""What a study ran on: machines, versions, commits and the cost of every run, summed up from run records."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recurformer.costs import cost_of

Record = Mapping[str, Any]


def _hosts(records: Iterable[Record]) -> list[dict[str, Any]]:
    names = ("processor", "cores", "system")
    counts = Counter(
        (*(record["host"][name] for name in names), record["accelerator"]["name"] if record["accelerator"] else None)
        for record in records
    )
    return [
        {**dict(zip((*names, "accelerator"), host, strict=True)), "runs": runs} for host, runs in counts.most_common()
    ]


def _counted(values: Iterable[str | None]) -> dict[str, int]:
    """Each value with how often it occurs, the most frequent first; a run outside of a repository knows none."""
    return dict(Counter(value or "unknown" for value in values).most_common())


def environment(runs: Mapping[Path, Record]) -> dict[str, Any]:
    """What a ledger of claims says about the runs that it rests on.

    Args:
        runs: run records by their places; one that lies in two places counts once.

    Returns:
        hosts: processor, cores, system, accelerator (name or None) and number of runs, the most used first;
        versions: package -> version -> number of runs;
        commits: commit -> number of runs;
        locks: SHA-256 of requirements.lock -> number of runs;
        dirty: number of runs whose working tree differed from its commit;
        runs: id -> stage, core_minutes, gpu_minutes.
    """
    places = {record["run"]: place for place, record in runs.items()}
    unique = [runs[place] for place in places.values()]
    costs = {run: cost_of(runs[place]) for run, place in places.items()}
    versions: dict[str, Counter[str]] = {}
    for record in unique:
        for package, version in record["versions"].items():
            versions.setdefault(package, Counter())[version] += 1
    return {
        "hosts": _hosts(unique),
        "versions": {package: dict(found.most_common()) for package, found in sorted(versions.items())},
        "commits": _counted(record["git"]["commit"] for record in unique),
        "locks": _counted(record["lock"] for record in unique),
        "dirty": sum(bool(record["git"]["dirty"]) for record in unique),
        "runs": {
            run: {
                "stage": runs[places[run]]["stage"],
                "core_minutes": cost.core_minutes,
                "gpu_minutes": cost.gpu_minutes,
            }
            for run, cost in costs.items()
        },
    }
