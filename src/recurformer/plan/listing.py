"""Planned jobs and their expected costs as tables and totals, each with its source; and the memory of each training.

An unknown cost is shown as unknown, never as nothing.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tabulate import tabulate

from recurformer.costs import Cost
from recurformer.plan.dry_run import Job
from recurformer.plan.estimates import FORMULA
from recurformer.plan.resources import CONTEXT_MB, MB
from recurformer.plan.training_memory import STRATEGIES, training_bytes
from recurformer.plan.work import Work
from recurformer.plan.work_training import train

Planned = Sequence[tuple[Job, Cost | None]]


def _counted(words: Iterable[str]) -> str:
    """Each once, with its count where there are several."""
    counts = Counter(words)
    return "; ".join(words if len(counts) == 1 else f"{words} ({number})" for words, number in counts.most_common())


def _range(values: Iterable[float], form: str) -> str:
    lowest, highest = (format(value, form) for value in (min(values), max(values)))
    return lowest if lowest == highest else f"{lowest} to {highest}"


def _known_or_requested(known: list[float], requested: list[int | None], form: str) -> str:
    """Known values as a range; of the others how many there are, and at most how much their rules ask for."""
    parts = [_range(known, form)] if known else []
    if requested:
        asked = [value for value in requested if value is not None]
        count = f"{len(requested)} " if known else ""
        parts.append(f"{count}unknown" + (f", requested {max(asked):,}" if asked else ""))
    return "; ".join(parts)


def _row(planned: Planned) -> dict[str, Any]:
    jobs = [job for job, _ in planned]
    costs = [cost for _, cost in planned if cost]
    unknown = [job for job, cost in planned if not cost]
    peaks = [cost.megabytes for cost in costs if cost.megabytes is not None]
    cards = [cost.card_megabytes for cost in costs if cost.card_megabytes is not None]
    unmeasured = [job.requested("mem_mb") for job, cost in planned if not cost or cost.megabytes is None]
    return {
        "jobs": len(jobs),
        "why": _counted("; ".join(job.reasons) for job in jobs),
        "threads": _range([job.threads for job in jobs], "d"),
        "GPU": _counted(job.gpu or "-" for job in jobs),
        "minutes each": _known_or_requested(
            [cost.minutes for cost in costs], [job.requested("runtime") for job in unknown], ".1f"
        ),
        "core minutes": f"{sum(cost.core_minutes for cost in costs):.1f}" if costs else "unknown",
        "GPU hours": f"{sum(cost.gpu_minutes for cost in costs) / 60:.1f}" if costs else "unknown",
        "peak MB": _known_or_requested(peaks, unmeasured, ",.0f"),
        "GPU MB": _range(cards, ",.0f") if cards else "-",
        "estimate from": _counted(cost.source if cost else "none" for _, cost in planned),
    }


def _table(rows: Iterable[dict[str, Any]], left_out: set[str]) -> str:
    kept = [{name: cell for name, cell in row.items() if name not in left_out} for row in rows]
    return tabulate(kept, headers="keys", tablefmt="github", disable_numparse=True)


def _no_gpu(planned: Planned) -> set[str]:
    return set() if any(job.gpu for job, _ in planned) else {"GPU", "GPU hours", "GPU MB"}


def by_rule(planned: Planned) -> str:
    """A Markdown table with a row for each rule, the costliest first, the unknown ones last."""
    groups: dict[str, list[tuple[Job, Cost | None]]] = defaultdict(list)
    for job, cost in planned:
        groups[job.rule].append((job, cost))
    core_minutes = {rule: sum(cost.core_minutes for _, cost in group if cost) for rule, group in groups.items()}
    costliest = sorted(groups, key=lambda rule: (-core_minutes[rule], rule))
    return _table(({"rule": rule} | _row(groups[rule]) for rule in costliest), _no_gpu(planned))


def by_job(planned: Planned) -> str:
    """A Markdown table with a row for each job, named by its first output."""
    rows = ({"rule": job.rule, "job": job.outputs[0]} | _row([(job, cost)]) for job, cost in planned)
    return _table(rows, {"jobs"} | _no_gpu(planned))


def time_words(minutes: float) -> str:
    """Minutes, or hours where they are many."""
    return f"{minutes:.1f} minutes" if minutes < 120 else f"{minutes / 60:,.1f} hours"


def _jobs(number: int) -> str:
    return f"{number} job" if number == 1 else f"{number} jobs"


def totals(planned: Planned, cores: int, gpus: int = 1, card_gib: float = math.inf) -> dict[str, Any]:
    """Sums over the jobs whose cost is known, and how many are not; minutes, megabytes. `card_gib`: of a GPU."""
    known = [(job, cost) for job, cost in planned if cost]
    unknown = [job for job, cost in planned if not cost]
    core_minutes = sum(cost.core_minutes for _, cost in known)
    gpu_minutes = sum(cost.gpu_minutes for _, cost in known)
    longest, longest_cost = max(known, key=lambda pair: pair[1].minutes, default=(None, None))
    longest_minutes = longest_cost.minutes if longest_cost else 0.0
    measured = [cost.megabytes for _, cost in known if cost.source != FORMULA and cost.megabytes is not None]
    too_large = [job for job, cost in known if (cost.card_megabytes or 0) > card_gib * 1024]
    return {
        "jobs": len(planned),
        "unknown_jobs": len(unknown),
        "core_minutes": core_minutes,
        "gpu_minutes": gpu_minutes,
        "cores": cores,
        "gpus": gpus,
        "wall_minutes_at_least": max(core_minutes / cores, gpu_minutes / gpus, longest_minutes),
        "longest_minutes": longest_cost.minutes if longest_cost else None,
        "longest_job": longest.outputs[0] if longest else None,
        "sources": dict(Counter(cost.source if cost else "none" for _, cost in planned)),
        "peak_megabytes": max(measured, default=None),
        "requested_megabytes": max((job.requested("mem_mb") or 0 for job, _ in planned), default=None),
        "unknown_requested_minutes": sum(job.requested("runtime") or 0 for job in unknown),
        "gpu_jobs": sum(bool(job.gpu) for job, _ in planned),
        "card_gib": card_gib,
        "too_large": dict(Counter(job.rule for job in too_large)),
    }


def summary(total: dict[str, Any]) -> str:
    """`totals` in sentences."""
    lines = [_jobs(total["jobs"]) + (f", {total['gpu_jobs']} of them on GPUs" if total["gpu_jobs"] else "")]
    known = total["jobs"] - total["unknown_jobs"]
    on = f"{total['cores']} cores" + (f" and {total['gpus']} GPUs" if total["gpu_jobs"] else "")
    if known:
        lines += [
            f"core time: {time_words(total['core_minutes'])} ({_jobs(known)}; time times the threads that a job holds)",
            f"wall time on {on}: about {time_words(total['wall_minutes_at_least'])} or more; "
            f"the longest job takes {time_words(total['longest_minutes'])} ({total['longest_job']})",
        ]
    if total["gpu_jobs"]:
        lines.insert(1, f"GPU hours: {total['gpu_minutes'] / 60:.1f}")
    if total["unknown_jobs"]:
        lines.append(
            f"unknown: {_jobs(total['unknown_jobs'])} without any former run or formula, in none of these sums; "
            f"their rules request {total['unknown_requested_minutes']:,} minutes at most"
        )
    measured = f"{total['peak_megabytes']:,.0f} MB measured, " if total["peak_megabytes"] else ""
    lines.append(f"largest memory of a job: {measured}{total['requested_megabytes']:,} MB requested")
    if total["too_large"]:
        jobs = ", ".join(f"{rule} ({number})" for rule, number in total["too_large"].items())
        lines.append(f"too large for a GPU of {total['card_gib']:g} GiB: {jobs}")
    lines.append("sources: " + "; ".join(f"{name} ({_jobs(number)})" for name, number in total["sources"].items()))
    return "\n".join(lines)


CARDS = (1, 2, 4, 8)
GIB = 2**30
SENTENCE = (
    "Memory of a training on each GPU, by formula: bfloat16 with float32 weights, gradients and AdamW's moments, one "
    "sequence at a time; the longest training of each backbone, at its largest fraction of replaced heads."
)


def trainings(study: Mapping[str, Any]) -> Iterator[tuple[str, Work]]:
    """For each backbone that a study trains, its longest training at the largest share of replaced heads."""
    betas = {"language": max(study["language"]["betas"]), "hashhop": max(study["betas"])}
    for name in study["backbones"]:
        works = [
            train(task)(study, {"backbone": name, "beta": str(beta)})
            for task, beta in betas.items()
            if name in study[task]["backbones"]
        ]
        if works:
            longest = max(works, key=lambda work: work.tokens)
            yield name, Work("train", longest.shape, longest.tokens, beta=longest.beta)


def memory_table(study: Mapping[str, Any]) -> str:
    """Every backbone's training on 1 to 8 GPUs, as a Markdown table below a sentence."""
    capacity = study["caches"]["sizes"]["memory_gib"]
    ways = [("ddp", CARDS[0]), *((strategy, cards) for strategy in STRATEGIES for cards in CARDS[1:])]
    rows = []
    for name, alone in trainings(study):
        for strategy, cards in ways:
            training = replace(alone, processes=cards, strategy=strategy)
            usual, lean = (
                (training_bytes(replace(training, checkpointing=kept)) + CONTEXT_MB * MB) / GIB
                for kept in (False, True)
            )
            fits = "yes" if usual <= capacity else "with checkpointing" if lean <= capacity else "no"
            rows.append(
                {
                    "backbone": name,
                    "parameters": f"{training.parameters / 1e9:.2f} B",
                    "β": training.beta,
                    "tokens": training.tokens,
                    "GPUs": cards,
                    "sharing": "none" if cards == 1 else strategy.upper(),
                    "GiB each": f"{usual:.1f}",
                    "with checkpointing": f"{lean:.1f}",
                    f"fits {capacity:g} GiB": fits,
                }
            )
    return f"{SENTENCE}\n\n{tabulate(rows, headers='keys', tablefmt='github', disable_numparse=True)}"
