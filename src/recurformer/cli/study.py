"""A whole study: before its run whether it is right and what its keys mean, after it a recording to be committed."""

import json
import re
import shutil
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, get_origin

import yaml
from pydantic.fields import FieldInfo

from recurformer.cli.stage import argument, stage
from recurformer.files import atomic_path, read_yaml, refuse_strange
from recurformer.records import PACK, gpus_of, packed, read_record, runs_behind
from recurformer.study import Block, Study
from recurformer.study.block import inner_blocks
from recurformer.study.needs import Sizes


def _blocks(block: type[Block], name: str) -> Iterator[tuple[str, type[Block]]]:
    yield name, block
    for key, field in block.model_fields.items():
        for annotation in inner_blocks(field.annotation):
            inner = f"{name}.{key}" if name else key
            yield from _blocks(annotation, f"{inner}.NAME" if get_origin(field.annotation) is dict else inner)


COMMON = (
    "study",
    "betas",
    "seed",
    "device",
    "backbones",
    "language.backbones",
    "language.training.steps",
    "hashhop.seeds",
    "mqar.learning_rates",
    "ablations.budgets",
)
"""The keys that a study of one's own changes first, with the blocks that hold them."""


def _row(name: str, field: FieldInfo) -> str:
    nested = isinstance(field.annotation, type) and issubclass(field.annotation, Block)
    default = "required" if field.is_required() else "see below" if nested else f"`{field.default}`"
    return f"| `{name}` | {default} | {' '.join((field.description or '').split())} |"


def describe() -> str:
    """All keys of a study as Markdown: the common ones, then block by block; a block in several places stands once."""
    places: dict[type[Block], list[str]] = {}
    for name, block in _blocks(Study, ""):
        places.setdefault(block, []).append(name)
    fields = {f"{name}.{key}".lstrip("."): field for block, names in places.items() for name in names
              for key, field in block.model_fields.items()}  # fmt: skip
    head = ["| key | default | meaning |", "|---|---|---|"]
    lines = [
        "A study is one YAML file; `recurformer study FILE` checks it. `recurformer study --describe` prints this list."
    ]
    lines += ["", "## The most common keys", "", *head, *(_row(name, fields[name]) for name in COMMON)]
    for block, (name, *others) in places.items():
        lines += ["", f"## `{name}`" if name else "## Top level", "", " ".join((block.__doc__ or "").split()), ""]
        if others:
            lines += [f"The same keys: {', '.join(f'`{other}`' for other in others)}.", ""]
        lines += [*head, *(_row(key, field) for key, field in block.model_fields.items())]
    return "\n".join(lines) + "\n"


def schema() -> str:
    """All keys of a study as a JSON schema, for editors and other tools."""
    return json.dumps(Study.model_json_schema(), indent=1) + "\n"


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
        return Study.read(settings)
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
        found = read_study(*args.config).model_dump(mode="json")
        for backbone in found["backbones"].values():
            if backbone.get("folder"):
                Sizes.of(backbone)  # refuses a folder without a checkpoint; the workflow looks at the hub too
        print(yaml.safe_dump(found, sort_keys=False), end="")
    else:
        raise ValueError("name a YAML file, or ask for --describe or --schema")


KEPT = {".csv", ".parquet", ".jsonl", ".json", ".md", ".tex", ".svg", ".png"}
LEFT = {"articles.parquet", "heads.json"}
"""Text under its own licence, and choices of heads, which follow from a profile."""


def _belongs(folder: Path, file: Path) -> bool:
    """Whether a file is this study's own and no part of a checkpoint, of another study or of an interrupted run."""
    parents = [folder.joinpath(*file.parts[:depth]) for depth in range(1, len(file.parts))]
    marks = ("tables", "logs", "config.json")  # of another study, and of a checkpoint
    other = any((parent / mark).exists() for parent in parents for mark in marks)
    other |= file.parts[0] == "tracking"  # the stores of trackers, which have all from the metric logs
    return not other and not any(part.startswith(".") or part.endswith(".checkpoints") for part in file.parts)


def study_files(results: str | Path, figures: str | Path) -> dict[Path, Path]:
    """The files of a study that are worth keeping, by the places where they are kept, in the order of these."""
    folders = {"results": (Path(results), "**/*"), "figures": (Path(figures), "*")}  # other studies' figures lie below
    return {
        Path(name) / file.relative_to(folder): file
        for name, (folder, pattern) in sorted(folders.items())
        for file in sorted(folder.glob(pattern))
        if file.suffix in KEPT and file.name not in LEFT | {"README.md"} and _belongs(folder, file.relative_to(folder))
    }


def clean_records(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The run records among some files.

    Raises:
        ValueError: a run was not of a commit as it is.
    """
    records = {file: read_record(file) for file in files if file.name.endswith("run.json")}
    for place, record in records.items():
        if record["git"]["dirty"] is not False:
            raise ValueError(f"{place}: not a run of a clean commit; commit, delete its results and run it again")
    return list(records.values())


def card_folder(records: Iterable[dict[str, Any]]) -> str:
    """The name of the one kind of GPU on which some runs were made, as a folder: nvidia-h200.

    Raises:
        ValueError: there is no GPU or are several kinds.
    """
    gpus = gpus_of(records)
    if len(gpus) != 1:
        raise ValueError(f"--by-card: the runs were made on {' and '.join(gpus) or 'no GPU'}, not on one kind of GPU")
    return re.sub(r"[^a-z0-9]+", "-", gpus[0].lower()).strip("-")


def _is_measurement(place: Path) -> bool:
    """Tables and ledgers are rendered; they can be named like measurements."""
    from recurformer.results.frames import READERS

    rendered = place.parts[0] != "results" or place.parts[1] == "tables" or place.stem == "claims"
    return place.suffix in READERS and not rendered


def write_recording(target: Path, files: Mapping[Path, Path]) -> None:
    """Write the files of a study to a folder: its records in one file, its measurements in one file a kind, and its
    tables, figures and ledgers as they are.

    Args:
        target: an empty folder.
        files: place in the study, which begins with `results` or `figures` -> file.
    """
    from recurformer.results.frames import PACKED, pack

    records = {place: read_record(file) for place, file in files.items() if place.name.endswith("run.json")}
    lines = [json.dumps({"place": str(place), **record}) + "\n" for place, record in records.items()]
    (target / PACK).write_text("".join(lines), encoding="utf-8")
    (target / PACKED).mkdir()
    measured = {place: file for place, file in files.items() if _is_measurement(place)}
    for kind, frame in pack(measured, lambda file: runs_behind([file])).items():
        frame.to_parquet(target / PACKED / f"{kind}.parquet", index=False)
    for place, file in files.items():
        if place not in records and place not in measured:
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / place)


def _recorded_files(folder: Path) -> set[Path]:
    """The files of a recording that this command wrote."""
    from recurformer.results.frames import PACKED, packed_kind

    wrote = {place.parent / name for place, record in packed(folder).items() for name in record["outputs"]}
    kinds = {packed_kind(file.relative_to(folder)) for file in wrote}
    return {folder / PACK, *wrote, *(folder / PACKED / f"{kind}.parquet" for kind in kinds)}


@stage(
    "keep the results of a study in one folder, to commit it",
    argument("results", help="folder of measurements and tables"),
    argument("figures", help="folder of figures"),
    argument("kept", help="folder to write; what it holds is replaced, if run records there name all of it"),
    argument(
        "--by-card",
        action="store_true",
        help="write to a folder in `kept` with the GPU's name; all runs must be from such GPUs",
    ),
)
def keep(args: Namespace) -> None:
    """Keep the measurements, records, tables and figures of a study in one folder, to commit it. All of its runs must
    be of clean commits.
    """
    files = study_files(args.results, args.figures)
    records = clean_records(files.values())
    if not records:
        raise ValueError(f"{args.results}: no run records in it; run the study first")
    target = Path(args.kept, card_folder(records)) if args.by_card else Path(args.kept)
    refuse_strange(target, {target / place for place in files} | _recorded_files(target))
    with atomic_path(target, directory=True) as kept:
        write_recording(kept, files)
    print(f"{len(files)} files of {args.results} and {args.figures} in {target}")
