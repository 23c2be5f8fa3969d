"""Attention of a high, a middle and a low RA-I head, averaged over windows (Figure 5)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import InputPath, read_block
from recurformer.cli.maps import add_map_arguments, map_windows
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import Maps


def add_arguments(parser: ArgumentParser) -> None:
    add_map_arguments(parser, "attention_map", "Parquet")
    parser.add_argument("--profile", type=InputPath, required=True, help="head profile of the model")


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model
    from recurformer.heads.profile import HeadProfile
    from recurformer.measure.attention_map import attention_maps

    settings = read_block(args, Maps)
    input_ids = map_windows(args, settings.samples, settings.tokens)
    profile = HeadProfile.load(args.profile)
    frame = attention_maps(open_model(args.checkpoint), input_ids, profile, args.name, progress=progress("window"))
    with atomic_path(args.attention_map) as path:
        frame.to_parquet(path, index=False)
