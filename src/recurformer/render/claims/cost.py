"""The runs that evidence rests on: what they cost together and where they were made."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recurformer.costs import cost_of
from recurformer.records import ancestors, record_of

Runs = Mapping[Path, Mapping[str, Any]]
"""Place of a record -> the record."""


def runs_of(files: Iterable[str]) -> Runs:
    """The records of all runs that a set of files rests on, those that wrote them first."""
    found: dict[Path, dict[str, Any]] = {}
    for record in filter(None, map(record_of, files)):
        found.update(ancestors(record))
    return found


def total_minutes(runs: Runs) -> dict[str, float]:
    """Core minutes and GPU minutes of several runs; one whose record lies in two places counts once."""
    places = {record["run"]: place for place, record in runs.items()}
    costs = [cost_of(place, runs[place]) for place in places.values()]
    return {
        "core_minutes": round(sum(cost.core_minutes for cost in costs), 3),
        "gpu_minutes": round(sum(cost.gpu_minutes for cost in costs), 3),
    }


def hardware_of(runs: Runs) -> str:
    """The machines of some runs, each once."""
    machines = []
    for record in runs.values():
        host, accelerator = record["host"], record["accelerator"]
        machines.append(accelerator["name"] if accelerator else f"{host['processor']}, {host['cores']} cores")
    return "; ".join(dict.fromkeys(machines))
