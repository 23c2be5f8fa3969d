"""Stages before a run: check a study, and list the jobs that it would have."""

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from functools import reduce
from typing import Any, get_origin

import yaml

from recurformer.cli.arguments import COUNT, InputPath, OutputPath
from recurformer.cli.stage import argument, stage
from recurformer.files import atomic_path
from recurformer.study import Block, Study, load_study
from recurformer.study.block import inner_blocks
from recurformer.yaml_files import read_yaml

BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Pydantic's words for bounds of values that it checks by a function first -> those of JSON schema."""


def _blocks(block: type[Block], name: str) -> Iterator[tuple[str, type[Block]]]:
    yield name, block
    for key, field in block.model_fields.items():
        for annotation in inner_blocks(field.annotation):
            inner = f"{name}.{key}" if name else key
            yield from _blocks(annotation, f"{inner}.NAME" if get_origin(field.annotation) is dict else inner)


def describe() -> str:
    """All keys of a study, block by block, as Markdown."""
    lines = [
        "A study is one YAML file; `recurformer study FILE` checks it. `recurformer study --describe` prints this list."
    ]
    for name, block in _blocks(Study, ""):
        lines += ["", f"## `{name}`" if name else "## Top level", "", " ".join((block.__doc__ or "").split()), ""]
        lines += ["| key | default | meaning |", "|---|---|---|"]
        for key, field in block.model_fields.items():
            nested = isinstance(field.annotation, type) and issubclass(field.annotation, Block)
            default = "required" if field.is_required() else "see below" if nested else f"`{field.default}`"
            lines.append(f"| `{key}` | {default} | {' '.join((field.description or '').split())} |")
    return "\n".join(lines) + "\n"


def schema() -> str:
    """All keys of a study as a JSON schema, for editors and other tools."""
    text = json.dumps(Study.model_json_schema(), indent=1) + "\n"
    for ours, standard in BOUNDS.items():
        text = text.replace(f'"{ours}":', f'"{standard}":')
    return text


def _read(config: str) -> dict[str, Any]:
    settings = read_yaml(config)
    if not isinstance(settings, dict):
        raise ValueError(f"{config}: a study is a mapping of keys to values")
    return settings


def _overlay(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The settings with some of them changed, as Snakemake merges several files."""
    inner = {key: _overlay(base[key], value) for key, value in changes.items()
             if isinstance(value, dict) and isinstance(base.get(key), dict)}  # fmt: skip
    return {**base, **changes, **inner}


def read_study(*configs: str) -> Study:
    """The study that YAML files describe, each a change of those before it.

    Raises:
        ValueError: a fault in them, in one line.
    """
    settings = reduce(_overlay, map(_read, configs))
    try:
        return load_study(settings)
    except ValueError as error:
        raise ValueError(f"{configs[-1]}: {error}") from None


@stage(
    "list the jobs of a run, with their reasons, times and resources",
    argument("targets", nargs="*", help="files or rules to plan for (default: the whole study)"),
    argument(
        "--configfile", type=InputPath, nargs="+", default=["config/default.yaml"], help="the study (YAML), and changes"
    ),
    argument("--cores", type=COUNT, default=os.cpu_count(), help="cores to plan for (default: all)"),
    argument("--gpus", type=COUNT, default=1, help="GPUs to plan for (default: 1)"),
    argument("--workflow-profile", help="Snakemake profile that the run will use"),
    argument("--jobs", action="store_true", help="list every job, not only every rule"),
    argument("--memory", action="store_true", help="only the memory of each training, by number of GPUs"),
    argument("--json", type=OutputPath, help="also write the plan to this file"),
)
def plan(args: Namespace) -> None:
    """List the jobs of a run before it starts, with their reasons, times and resources.

    Costs come from the records of an earlier run in this folder, else from those of a recording in `recorded/`,
    else from other jobs of the same rule and model, else from a formula. For other jobs the cost is unknown, and the
    requests of their rules are shown instead.
    """
    from recurformer.plan.dry_run import dry_run
    from recurformer.plan.estimates import FORMULA, estimate, known_costs
    from recurformer.plan.listing import by_job, by_rule, summary, totals
    from recurformer.plan.resources import ASSUMPTIONS

    settings = read_study(*args.configfile).model_dump(mode="json")
    if args.memory:
        _print_memory(settings)
        return
    jobs = dry_run(args.targets, args.configfile, args.cores, args.workflow_profile)
    past = known_costs()
    planned = [(job, estimate(job, past, settings)) for job in jobs]
    total = totals(planned, args.cores, args.gpus, settings["caches"]["sizes"]["memory_gib"])
    if args.json:
        listed = [{**asdict(job), "expected": asdict(cost) if cost else None} for job, cost in planned]
        with atomic_path(args.json) as path:
            path.write_text(
                json.dumps({"configfiles": args.configfile, "total": total, "jobs": listed}, indent=1) + "\n"
            )
    if not planned:
        print("Nothing to be done: all requested files exist and are up to date.")
        return
    print(by_job(planned) if args.jobs else by_rule(planned), summary(total), sep="\n\n")
    if FORMULA in total["sources"]:
        print(ASSUMPTIONS)
    if settings["device"] == "gpu" and any(job.rule.startswith("train_") for job in jobs):
        print()
        _print_memory(settings)


def _print_memory(settings: dict[str, Any]) -> None:
    from recurformer.plan.listing import memory_table

    print(memory_table(settings))


@stage(
    "check a study's configuration and print it in full",
    argument("config", nargs="*", help="YAML file, and files that change some of its keys"),
    argument("--describe", action="store_true", help="describe every key in Markdown instead"),
    argument("--schema", action="store_true", help="print the JSON schema of a study instead"),
)
def study(args: Namespace) -> None:
    """Check a study's configuration and print it in full, or describe every key."""
    if args.describe:
        print(describe(), end="")
    elif args.schema:
        print(schema(), end="")
    elif args.config:
        print(yaml.safe_dump(read_study(*args.config).model_dump(mode="json"), sort_keys=False), end="")
    else:
        raise ValueError("name a YAML file, or ask for --describe or --schema")
