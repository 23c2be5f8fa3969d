"""What jobs cost before, from the benchmark files beside run records, and what a job will cost from that.

A record's command line says which file of the workflow it once was, in a recording too. So a benchmark is only ever
taken for a job of the same study. It does not know what jobs do.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from recurformer.costs import cost_of, option
from recurformer.plan.dry_run import Job
from recurformer.records import benchmark_beside, read_record


@dataclass(frozen=True)
class Cost:
    """Of one job: minutes, minutes times the processor cores that it held, peak memory in megabytes; and from where."""

    minutes: float
    core_minutes: float
    megabytes: float | None
    source: str


def _costs_below(folder: Path, source: str) -> Iterator[tuple[str, Cost]]:
    for place in sorted(folder.rglob("*run.json")):
        benchmark = place.with_name(benchmark_beside(place.name))
        if not benchmark.is_file():
            continue
        try:
            record = read_record(place)
            cost = cost_of(place, record)
        except (ValueError, KeyError):  # an older record, or a benchmark that a killed run left unfinished
            continue
        if name := option(record["argv"], "--record"):
            yield benchmark_beside(name), Cost(cost.minutes, cost.core_minutes, cost.megabytes, source)


def past_costs(folders: Mapping[Path, str]) -> dict[str, Cost]:
    """Costs by the name that the workflow has for the benchmark file; `folders` says where to look, and each one's
    source as it is to be named. The first folder that knows a file counts.
    """
    found: dict[str, Cost] = {}
    for folder, source in folders.items():
        for name, cost in _costs_below(folder, source):
            found.setdefault(name, cost)
    return found


def _same_rule(job: Job, benchmark: str) -> re.Pattern[str]:
    """Benchmark files of the same rule and study: equal but for the values of the wildcards."""
    values = sorted(filter(None, job.wildcards.values()), key=len, reverse=True)
    parts = re.split("|".join(map(re.escape, values)), benchmark) if values else [benchmark]
    return re.compile("[^/]+".join(map(re.escape, parts)))


def estimate(job: Job, past: Mapping[str, Cost]) -> Cost | None:
    """What the job itself cost before, else the median over other jobs of its rule, else nothing."""
    if job.benchmark is None:
        return None
    if job.benchmark in past:
        return past[job.benchmark]
    pattern = _same_rule(job, job.benchmark)
    others = [cost for name, cost in past.items() if pattern.fullmatch(name)]
    if not others:
        return None
    return Cost(
        minutes=median(cost.minutes for cost in others),
        core_minutes=median(cost.core_minutes for cost in others),
        megabytes=max((cost.megabytes for cost in others if cost.megabytes is not None), default=None),
        source=f"median of {len(others)} of its rule",
    )
