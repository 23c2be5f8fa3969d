"""Cost of a run, from the benchmark file that the workflow writes with the run record."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurformer.records import benchmark_beside


@dataclass(frozen=True)
class Cost:
    """Costs of one run: minutes, minutes times the cores that it held, minutes of an accelerator, peak memory in
    megabytes, and that of tensors on the accelerator; of an estimate, its source.

    Processor time would be finer, but Snakemake samples it every 30 seconds and misses what follows the last sample.
    """

    minutes: float
    core_minutes: float
    gpu_minutes: float
    megabytes: float | None
    card_megabytes: float | None
    source: str = ""


def option(argv: Sequence[str], name: str) -> str | None:
    """The value of a command-line option, None where it is not given."""
    return argv[argv.index(name) + 1] if name in argv[:-1] else None


def cost_of(place: Path, record: Mapping[str, Any]) -> Cost:
    """The cost of a run: of its whole job where that was benchmarked, else of the run as it recorded itself.

    Raises:
        ValueError: the benchmark is not one that Snakemake has finished.
    """
    benchmark = place.with_name(benchmark_beside(place.name))
    minutes, megabytes = _read(benchmark) if benchmark.is_file() else (record["seconds"] / 60, None)
    threads = int(option(record["argv"], "--threads") or 1)
    card = record["accelerator"]
    on_card = (minutes, card["peak_memory_bytes"] / 2**20) if card else (0.0, None)
    return Cost(minutes, minutes * threads, on_card[0], megabytes, on_card[1])


def _read(benchmark: Path) -> tuple[float, float | None]:
    """Minutes and megabytes; a job faster than Snakemake's first sample has no memory."""
    with benchmark.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    if not rows or "max_rss" not in rows[-1]:
        raise ValueError(f"{benchmark}: not a finished benchmark")
    memory = rows[-1]["max_rss"]
    return float(rows[-1]["s"]) / 60, None if memory in {"NA", "-"} else float(memory)
