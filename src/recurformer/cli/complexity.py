"""How cache peak and cache size of attention and Mamba grow with the length (Table 1)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import OutputPath, add_block, read_block
from recurformer.files import atomic_path
from recurformer.study import Mamba, Sizes


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("complexity", type=OutputPath, help="CSV file to write")
    add_block(parser, Sizes)
    add_block(parser, Mamba, "mamba-")


def run(args: Namespace) -> None:
    from recurformer.measure.complexity import measure_complexity

    mamba = read_block(args, Mamba, "mamba-").model_dump()
    frame = measure_complexity(read_block(args, Sizes).growth_lengths, mamba=mamba)
    with atomic_path(args.complexity) as path:
        frame.to_csv(path, index=False)
