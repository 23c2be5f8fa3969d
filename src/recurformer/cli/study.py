"""Check a study's configuration and print it in full, or describe every key."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import get_origin

import yaml

from recurformer.study import Block, Study, load_study
from recurformer.study.block import inner_blocks


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", help="YAML file")
    parser.add_argument("--describe", action="store_true", help="describe every key in Markdown instead")


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


def read_study(config: str) -> Study:
    """The study that a YAML file describes.

    Raises:
        ValueError: in one line, what is wrong with it.
    """
    with open(config) as file:
        try:
            settings = yaml.safe_load(file)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            place = f", line {mark.line + 1}" if mark else ""
            raise ValueError(f"{config}{place}: not YAML ({str(error).splitlines()[0]})") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{config}: not a text in UTF-8 ({error.reason} at byte {error.start})") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{config}: a study is a mapping of keys to values")
    try:
        return load_study(settings)
    except ValueError as error:
        raise ValueError(f"{config}: {error}") from None


def run(args: Namespace) -> None:
    if args.describe:
        print(describe(), end="")
        return
    if args.config is None:
        raise ValueError("name a YAML file, or ask for --describe")
    print(yaml.safe_dump(read_study(args.config).model_dump(mode="json"), sort_keys=False), end="")
