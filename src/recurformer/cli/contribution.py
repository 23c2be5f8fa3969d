"""What the first token contributes to attention's output, against other tokens (Table 5)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import read_block
from recurformer.cli.maps import add_map_arguments, map_windows
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import Maps


def add_arguments(parser: ArgumentParser) -> None:
    add_map_arguments(parser, "contribution", "CSV")


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model
    from recurformer.measure.contribution import contribution_table, token_contributions

    settings = read_block(args, Maps)
    input_ids = map_windows(args, settings.samples, settings.tokens)
    contributions = token_contributions(open_model(args.checkpoint), input_ids, progress=progress("window"))
    with atomic_path(args.contribution) as path:
        contribution_table(contributions, args.name).to_csv(path, index=False)
