"""Copy what a finished study measured, its records, tables and figures into one folder: what is worth committing."""

import shutil
from argparse import ArgumentParser, Namespace
from pathlib import Path

from recurformer.files import atomic_path

KEPT = {".csv", ".parquet", ".json", ".jsonl", ".md", ".tex", ".tsv", ".svg", ".png"}
LEFT = {"articles.parquet"}
"""Text under its own licence."""


def _belongs(folder: Path, file: Path) -> bool:
    """Whether a file is this study's own and no part of a checkpoint, of another study or of an interrupted run."""
    parents = [folder.joinpath(*file.parts[:depth]) for depth in range(1, len(file.parts))]
    other = any((parent / "tables").is_dir() or (parent / "config.json").is_file() for parent in parents)
    other |= file.parts[0] == "tracking"  # the stores of trackers, which have all from the metric logs
    return not other and not any(part.startswith(".") or part.endswith(".checkpoints") for part in file.parts)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("results", help="folder of measurements and tables")
    parser.add_argument("figures", help="folder of figures")
    parser.add_argument("kept", help="folder to write, replaced when it is there")


def run(args: Namespace) -> None:
    if not Path(args.results, "tables").is_dir():
        raise ValueError(f"{args.results}: no tables in it; run the study first")
    with atomic_path(args.kept, directory=True) as kept:
        results, figures = Path(args.results), Path(args.figures)
        files = [("results", results, file) for file in results.rglob("*")]
        files += [("figures", figures, file) for file in figures.glob("*")]
        for name, folder, file in sorted(files):
            place = file.relative_to(folder)
            if file.suffix in KEPT and file.name not in LEFT | {"README.md"} and _belongs(folder, place):
                (kept / name / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, kept / name / place)
