"""The cache sizes of the PyramidInfer baseline as the paper configured it (Table 2; appendix B)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import COUNT, OutputPath, add_block, read_block
from recurformer.files import atomic_path
from recurformer.study import Sizes


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("pyramidinfer", type=OutputPath, help="CSV file to write")
    parser.add_argument("--name", default="llama2-7b", help="the backbone whose layers count; the paper's is Llama2-7B")
    parser.add_argument("--layers", type=COUNT, default=32, help="its layers")
    add_block(parser, Sizes)


def run(args: Namespace) -> None:
    from recurformer.measure.cache import pyramidinfer_rows

    with atomic_path(args.pyramidinfer) as path:
        pyramidinfer_rows(read_block(args, Sizes).lengths, args.name, args.layers).to_csv(path, index=False)
