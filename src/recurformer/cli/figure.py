"""Render one figure, of the paper or of the ablations, from measurement files, as SVG or PNG."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from recurformer.cli.arguments import InputPath, OutputPath
from recurformer.cli.measurements import call_renderer
from recurformer.files import atomic_path
from recurformer.records import runs_behind


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("figure", help="figure1 … figure6, ablation_pareto, …")
    parser.add_argument(
        "measurements", type=InputPath, nargs="+", help="measurement files; the name of a file says what it holds"
    )
    parser.add_argument(
        "--out", type=OutputPath, nargs="+", required=True, help="files to write; the suffix (.svg, .png) is the format"
    )


def run(args: Namespace) -> None:
    from recurformer.render.figures import FIGURES
    from recurformer.render.style import save_figure

    figure = call_renderer(args.figure, FIGURES, args.measurements)
    for target in args.out:
        with atomic_path(target) as path:
            save_figure(figure, path, runs_behind(args.measurements))
        print(Path(target).name)
