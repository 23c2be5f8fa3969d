"""Weights that a recency-aware head, and the Mamba block in its place, give to earlier tokens (Figure 1)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import InputPath, read_block
from recurformer.cli.checkpoints import add_dtype
from recurformer.cli.maps import add_map_arguments, map_windows
from recurformer.files import atomic_path
from recurformer.study import Maps


def add_arguments(parser: ArgumentParser) -> None:
    add_map_arguments(parser, "influence", "Parquet")
    add_dtype(parser)
    parser.add_argument("--trained", type=InputPath, required=True, help="folder of the converted and trained model")
    parser.add_argument("--profile", type=InputPath, required=True, help="head profile of the model before conversion")


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model
    from recurformer.heads.profile import HeadProfile
    from recurformer.measure.influence import measure_influence

    settings = read_block(args, Maps)
    frame = measure_influence(
        open_model(args.checkpoint, args.dtype),
        open_model(args.trained, args.dtype),
        map_windows(args, settings.samples, settings.sink_tokens),
        HeadProfile.load(args.profile),
        args.name,
    )
    with atomic_path(args.influence) as path:
        frame.to_parquet(path, index=False)
