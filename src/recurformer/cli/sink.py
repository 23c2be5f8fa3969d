"""Value norms, attention and contributions of one head, named or the one with the strongest sink (Figure 2)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import add_block, read_block
from recurformer.cli.maps import add_map_arguments, map_windows
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import Maps, SinkHead


def add_arguments(parser: ArgumentParser) -> None:
    add_map_arguments(parser, "sink", "Parquet")
    add_block(parser, SinkHead)


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model
    from recurformer.measure.contribution import sink_statistics

    settings, shown = read_block(args, Maps), read_block(args, SinkHead)
    input_ids = map_windows(args, settings.samples, settings.sink_tokens)
    model = open_model(args.checkpoint)
    frame = sink_statistics(model, input_ids, args.name, shown.layer, shown.head, progress=progress("window"))
    with atomic_path(args.sink) as path:
        frame.to_parquet(path, index=False)
