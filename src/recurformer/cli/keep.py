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


def study_files(results: str | Path, figures: str | Path) -> dict[Path, Path]:
    """The files of a study that are worth keeping, by the places where they are kept, in the order of these."""
    folders = {"results": (Path(results), "**/*"), "figures": (Path(figures), "*")}  # other studies' figures lie below
    return {
        Path(name) / file.relative_to(folder): file
        for name, (folder, pattern) in sorted(folders.items())
        for file in sorted(folder.glob(pattern))
        if file.suffix in KEPT and file.name not in LEFT | {"README.md"} and _belongs(folder, file.relative_to(folder))
    }


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("results", help="folder of measurements and tables")
    parser.add_argument("figures", help="folder of figures")
    parser.add_argument("kept", help="folder to write, replaced when it is there")


def run(args: Namespace) -> None:
    if not Path(args.results, "tables").is_dir():
        raise ValueError(f"{args.results}: no tables in it; run the study first")
    with atomic_path(args.kept, directory=True) as kept:
        for place, file in study_files(args.results, args.figures).items():
            (kept / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, kept / place)
