"""Say before a run which jobs it has, why, for how long and with what: a dry run, and what the same jobs cost before.

Costs come from the benchmark files of a former run in this folder, else of a recording in `recorded/`, else from other
jobs of the same rule and model, else from a formula. Jobs that none of them covers are unknown: what their rules
request is shown instead.
"""

import json
import os
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import Any

from recurformer.cli.arguments import COUNT, InputPath, OutputPath
from recurformer.cli.study import read_study
from recurformer.files import atomic_path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("targets", nargs="*", help="files or rules to plan for (default: the whole study)")
    parser.add_argument("--configfile", type=InputPath, default="config/default.yaml", help="the study (YAML)")
    parser.add_argument("--cores", type=COUNT, default=os.cpu_count(), help="cores to plan for (default: all)")
    parser.add_argument("--gpus", type=COUNT, default=1, help="GPUs to plan for, where jobs ask for any (default: 1)")
    parser.add_argument("--workflow-profile", help="Snakemake profile that the run will use")
    parser.add_argument("--jobs", action="store_true", help="list every job, not only every rule")
    parser.add_argument("--memory", action="store_true", help="only the memory of each training, by number of GPUs")
    parser.add_argument("--json", type=OutputPath, help="also write the plan to this file")


def run(args: Namespace) -> None:
    from recurformer.plan import ASSUMPTIONS, FORMULA, by_job, by_rule, dry_run, estimate, known_costs, summary, totals

    study = read_study(args.configfile).model_dump(mode="json")
    if args.memory:
        _print_memory(study)
        return
    jobs = dry_run(args.targets, args.configfile, args.cores, args.workflow_profile)
    past = known_costs()
    planned = [(job, estimate(job, past, study)) for job in jobs]
    total = totals(planned, args.cores, args.gpus, study["caches"]["sizes"]["memory_gib"])
    if args.json:
        listed = [{**asdict(job), "expected": asdict(cost) if cost else None} for job, cost in planned]
        with atomic_path(args.json) as path:
            path.write_text(
                json.dumps({"configfile": args.configfile, "total": total, "jobs": listed}, indent=1) + "\n"
            )
    if not planned:
        print("Nothing to be done: all that was asked for is there and up to date.")
        return
    print(by_job(planned) if args.jobs else by_rule(planned), summary(total), sep="\n\n")
    if FORMULA in total["sources"]:
        print(ASSUMPTIONS)
    if study["device"] == "gpu" and any(job.rule.startswith("train_") for job in jobs):
        print()
        _print_memory(study)


def _print_memory(study: dict[str, Any]) -> None:
    from recurformer.plan.memory_plan import memory_table

    print(memory_table(study))
