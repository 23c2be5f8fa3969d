"""The longest input that fits a card, by a memory model: weights, cache and activations (Tables 2 and 4)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import BETA, SEED, OutputPath, add_block, read_block
from recurformer.cli.backbone import meta_backbone
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import Backbone, Mamba, Sizes


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("memory", type=OutputPath, help="CSV file to write")
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument("--betas", type=BETA, nargs="+", required=True, help="shares of heads replaced")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of a random ranking")
    add_block(parser, Sizes)
    add_block(parser, Backbone, "backbone-")
    add_block(parser, Mamba, "mamba-")


def run(args: Namespace) -> None:
    from recurformer.measure.memory import measure_memory

    sizes = read_block(args, Sizes)
    frame = measure_memory(
        meta_backbone(read_block(args, Backbone, "backbone-")),
        args.name,
        args.betas,
        memory_gib=sizes.memory_gib,
        chunk=sizes.chunk,
        seed=args.seed,
        mamba=read_block(args, Mamba, "mamba-").model_dump(),
        progress=progress("model"),
    )
    with atomic_path(args.memory) as path:
        frame.to_csv(path, index=False)
