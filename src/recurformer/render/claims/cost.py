"""What evidence cost and where it was made, from the run records behind it and the benchmarks beside them."""

import csv
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurformer.records import ancestors, record_of


@dataclass(frozen=True)
class Cost:
    """Minutes of processor cores and of accelerators."""

    core_minutes: float
    gpu_minutes: float


def benchmark_beside(record: Path) -> Path:
    """X.benchmark.tsv beside X.run.json."""
    return record.with_name(record.name.removesuffix("run.json") + "benchmark.tsv")


def cost_of(place: Path, record: dict[str, Any]) -> Cost:
    """The cost of one run: of the whole job where it was benchmarked, else of the run as it recorded itself."""
    core, wall = record["cpu_seconds"], record["seconds"]
    benchmark = benchmark_beside(place)
    if benchmark.is_file():
        with benchmark.open() as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        with suppress(ValueError):  # a job of less than a second has "NA" for a time
            core, wall = (sum(float(row[column]) for row in rows) for column in ("cpu_time", "s"))
    return Cost(core / 60, wall / 60 if record["accelerator"] else 0.0)


def runs_of(files: Iterable[str]) -> dict[Path, dict[str, Any]]:
    """The records of all runs that a set of files rests on."""
    found: dict[Path, dict[str, Any]] = {}
    for record in filter(None, map(record_of, files)):
        found.update(ancestors(record))
    return found


def total_cost(runs: dict[Path, dict[str, Any]]) -> Cost:
    """The cost of several runs, each once."""
    costs = [cost_of(place, record) for place, record in runs.items()]
    return Cost(sum(cost.core_minutes for cost in costs), sum(cost.gpu_minutes for cost in costs))


def hardware_of(runs: Iterable[dict[str, Any]]) -> str:
    """The machines of some runs, each once."""
    machines = []
    for record in runs:
        host, accelerator = record["host"], record["accelerator"]
        machines.append(accelerator["name"] if accelerator else f"{host['processor']}, {host['cores']} cores")
    return "; ".join(dict.fromkeys(machines))
