"""What a user asks before a run: whether a study is right, and what its keys mean."""

import json
from argparse import Namespace
from collections.abc import Iterator
from functools import reduce
from typing import Any, get_origin

import yaml

from recurformer.cli.stage import argument, stage
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
