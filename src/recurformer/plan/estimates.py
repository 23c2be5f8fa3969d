"""Costs of earlier jobs, from run records, and estimates for a job from them or by formula.

A record's command line says which file of the workflow it once was, in a recording too. So a run is only ever taken
for a job of the same study. It does not know what jobs do.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from recurformer.costs import Cost, cost_of, option
from recurformer.plan.dry_run import Job
from recurformer.plan.rules import WORKS, request
from recurformer.records import find_records

FORMULA = "formula"
HERE = {Path("results"): "a former run", Path("figures"): "a former run"}
RECORDED = Path("recorded")


def past_costs(folders: Mapping[Path, str]) -> dict[str, Cost]:
    """Costs by the name that the workflow has for the run record; `folders` says where to look, and each one's source
    as it is to be named. The first folder that knows a record counts.
    """
    found: dict[str, Cost] = {}
    for folder, source in folders.items():
        for _, record in find_records(folder):
            if name := option(record["argv"], "--record"):
                with suppress(KeyError, TypeError):  # a record of an older version
                    found.setdefault(name, replace(cost_of(record), source=source))
    return found


def known_costs() -> dict[str, Cost]:
    """`past_costs` of what lies in this folder: of a former run, else of a recording."""
    return past_costs(HERE | {folder: str(folder) for folder in sorted(RECORDED.glob("*"))})


def _same_rule(job: Job) -> re.Pattern[str]:
    """Records of the same rule, study and backbone, whose size decides: other wildcards may differ."""
    free = {value for name, value in job.wildcards.items() if value and name != "backbone"}
    values = sorted(free, key=len, reverse=True)
    parts = re.split("|".join(map(re.escape, values)), job.record) if values else [job.record]
    return re.compile("[^/]+".join(map(re.escape, parts)))


def by_formula(job: Job, study: Mapping[str, Any]) -> Cost | None:
    """The formulas' estimate for a job in a study (`Study.model_dump`); None for an unknown rule."""
    if job.rule not in WORKS:
        return None
    asked = request(job.rule, study, job.wildcards, job.threads)
    minutes = asked.minutes
    return Cost(minutes, minutes * job.threads, minutes * asked.gpus, asked.memory_mb, asked.card_mb, FORMULA)


def estimate(job: Job, past: Mapping[str, Cost], study: Mapping[str, Any]) -> Cost | None:
    """The job's own earlier cost, else the median over other jobs of its rule and size, else by formula."""
    if job.record in past:
        return past[job.record]
    pattern = _same_rule(job)
    others = [cost for name, cost in past.items() if pattern.fullmatch(name)]
    if not others:
        return by_formula(job, study)
    return Cost(
        minutes=median(cost.minutes for cost in others),
        core_minutes=median(cost.core_minutes for cost in others),
        gpu_minutes=median(cost.gpu_minutes for cost in others),
        megabytes=_largest(cost.megabytes for cost in others),
        card_megabytes=_largest(cost.card_megabytes for cost in others),
        source=f"median of {len(others)} of its rule",
    )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
