"""Value norms, attention and contributions of the head that attends most to the first token (Figure 2)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import read_block
from recurformer.cli.maps import add_map_arguments, map_windows
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import Maps


def add_arguments(parser: ArgumentParser) -> None:
    add_map_arguments(parser, "sink", "Parquet")


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model
    from recurformer.measure.contribution import sink_statistics

    settings = read_block(args, Maps)
    input_ids = map_windows(args, settings.samples, settings.sink_tokens)
    frame = sink_statistics(open_model(args.checkpoint), input_ids, args.name, progress=progress("window"))
    with atomic_path(args.sink) as path:
        frame.to_parquet(path, index=False)
