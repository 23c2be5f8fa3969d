"""Render one table of the paper from measurement files, as CSV, Markdown, LaTeX and HTML."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from recurformer.cli.arguments import InputPath, OutputPath
from recurformer.cli.measurements import call_renderer
from recurformer.files import atomic_path


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("table", help="table1 … table5")
    parser.add_argument(
        "measurements", type=InputPath, nargs="+", help="measurement files; the name of a file says what it holds"
    )
    parser.add_argument(
        "--out",
        type=OutputPath,
        nargs="+",
        required=True,
        help="files to write; the suffix (.csv, .md, .tex, .html) is the format",
    )


def run(args: Namespace) -> None:
    from recurformer.render.tables import TABLES

    table = call_renderer(args.table, TABLES, args.measurements)
    for target in args.out:
        with atomic_path(target) as path:
            table.write(path)
        print(Path(target).name)
