"""Copy what a finished study measured, its records, tables and figures into one folder: what is worth committing."""

import shutil
from argparse import ArgumentParser, Namespace
from pathlib import Path

from recurformer.files import atomic_path

KEPT = {".csv", ".parquet", ".json", ".md", ".tex", ".tsv", ".svg", ".png"}
LEFT = {"backbones", "trained", "base", "converted", "corpus", "logs"}
"""Folders of weights, of text under its own licence, and of what only matters to whom it happened."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("results", help="folder of measurements and tables")
    parser.add_argument("figures", help="folder of figures")
    parser.add_argument("kept", help="folder to write, replaced when it is there")


def run(args: Namespace) -> None:
    if not Path(args.results, "tables").is_dir():
        raise ValueError(f"{args.results}: no tables in it; run the study first")
    with atomic_path(args.kept, directory=True) as kept:
        for name, folder in (("results", Path(args.results)), ("figures", Path(args.figures))):
            for file in sorted(folder.rglob("*")):
                place = file.relative_to(folder)
                if file.suffix in KEPT and file.name != "README.md" and not LEFT & set(place.parts[:-1]):
                    (kept / name / place).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, kept / name / place)
