"""Copy what a study measured, its records, tables and figures into one folder: what is worth committing."""

import re
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path

from recurformer.files import atomic_path
from recurformer.records import cards_of, read_record

KEPT = {".csv", ".parquet", ".json", ".jsonl", ".md", ".tex", ".tsv", ".svg", ".png"}
LEFT = {"articles.parquet"}
"""Text under its own licence."""


def _belongs(folder: Path, file: Path) -> bool:
    """Whether a file is this study's own and no part of a checkpoint, of another study or of an interrupted run."""
    parents = [folder.joinpath(*file.parts[:depth]) for depth in range(1, len(file.parts))]
    other = any((parent / "tables").is_dir() or (parent / "config.json").is_file() for parent in parents)
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


def card_folder(files: Iterable[Path]) -> str:
    """The name of the one card on which the runs of some files were made, as a folder: nvidia-h200.

    Raises:
        ValueError: there is no card or are several, or a run was not of a commit as it is.
    """
    records = {file: read_record(file) for file in files if file.name.endswith("run.json")}
    for place, record in records.items():
        if record["git"]["dirty"] is not False:
            raise ValueError(f"{place}: not a run of a clean commit; commit, delete what it wrote and run it again")
    cards = cards_of(records.values())
    if len(cards) != 1:
        raise ValueError(f"--by-card: the runs were made on {' and '.join(cards) or 'no card'}, not on one")
    return re.sub(r"[^a-z0-9]+", "-", cards[0].lower()).strip("-")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("results", help="folder of measurements and tables")
    parser.add_argument("figures", help="folder of figures")
    parser.add_argument("kept", help="folder to write, replaced when it is there")
    parser.add_argument(
        "--by-card",
        action="store_true",
        help="write to a folder in `kept` that is named by the card; all runs must be from it and from clean commits",
    )


def run(args: Namespace) -> None:
    files = study_files(args.results, args.figures)
    if not args.by_card and not Path(args.results, "tables").is_dir():
        raise ValueError(f"{args.results}: no tables in it; run the study first")
    target = Path(args.kept, card_folder(files.values())) if args.by_card else Path(args.kept)
    with atomic_path(target, directory=True) as kept:
        for place, file in files.items():
            (kept / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, kept / place)
    print(f"{len(files)} files in {target}")
