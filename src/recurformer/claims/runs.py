"""The runs behind evidence: what they cost, on which machines and with which versions of everything they ran."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from recurformer.records import ancestors, record_of

Runs = Mapping[str, Mapping[str, Any]]
"""Id of a run -> its record."""


def runs_beneath(files: Iterable[str]) -> Runs:
    """All runs that a set of files rests on, those that wrote them first."""
    records = (record for file in files if (place := record_of(file)) for _, record in ancestors(place))
    return {record["run"]: record for record in records}


def minutes_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Minutes of a run times the cores that it held, and minutes of an accelerator."""
    minutes, argv = record["seconds"] / 60, record["argv"]
    threads = int(argv[argv.index("--threads") + 1]) if "--threads" in argv[:-1] else 1
    return {"core_minutes": minutes * threads, "gpu_minutes": minutes if record["accelerator"] else 0.0}


def total_minutes(runs: Runs) -> dict[str, float]:
    """Core minutes and GPU minutes of several runs."""
    minutes = [minutes_of(record) for record in runs.values()]
    return {kind: round(sum(one[kind] for one in minutes), 3) for kind in ("core_minutes", "gpu_minutes")}


def hardware_of(runs: Runs) -> str:
    """The machines of some runs, each once."""
    machines = []
    for record in runs.values():
        host, accelerator = record["host"], record["accelerator"]
        machines.append(accelerator["name"] if accelerator else f"{host['processor']}, {host['cores']} cores")
    return "; ".join(dict.fromkeys(machines))


def _counted(values: Iterable[str | None]) -> dict[str, int]:
    """Each value with how often it occurs, the most frequent first; a run outside of a repository knows none."""
    return dict(Counter(value or "unknown" for value in values).most_common())


def environment(runs: Runs) -> dict[str, Any]:
    """What a ledger of claims says about the runs that it rests on.

    Returns:
        hosts: processor, cores, system, accelerator (name or None) and number of runs, the most used first;
        versions: package -> version -> number of runs;
        commits: commit -> number of runs;
        locks: SHA-256 of requirements.lock -> number of runs;
        dirty: number of runs whose working tree differed from its commit, as far as they know one;
        runs: id -> stage, core_minutes, gpu_minutes.
    """
    about, records = ("processor", "cores", "system", "accelerator"), runs.values()
    accelerators = (record["accelerator"]["name"] if record["accelerator"] else None for record in records)
    hosts = Counter(
        (*(record["host"][name] for name in about[:-1]), accelerator)
        for record, accelerator in zip(records, accelerators, strict=True)
    )
    packages = sorted({package for record in records for package in record["versions"]})
    return {
        "hosts": [dict(zip(about, host, strict=True)) | {"runs": count} for host, count in hosts.most_common()],
        "versions": {
            package: _counted(record["versions"][package] for record in records if package in record["versions"])
            for package in packages
        },
        "commits": _counted(record["git"]["commit"] for record in records),
        "locks": _counted(record["lock"] for record in records),
        "dirty": sum(bool(record["git"]["dirty"]) for record in records),
        "runs": {run: {"stage": record["stage"]} | minutes_of(record) for run, record in runs.items()},
    }
