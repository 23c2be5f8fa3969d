"""Measure the longest input that fits a device, with random weights: l_m of Tables 2 and 4.

On a card its memory is limited to the given size; on a processor this process is. Trials are kept until the result is
written, so that a measurement that was killed goes on where it stopped.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from recurformer.cli.arguments import BETA, SEED, OutputPath, add_block, read_block
from recurformer.cli.backbone import meta_backbone
from recurformer.files import atomic_path
from recurformer.study import Backbone, Mamba, Search, Sizes


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("memory", type=OutputPath, help="CSV file to write")
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument("--beta", type=BETA, required=True, help="share of heads replaced")
    parser.add_argument("--protocol", required=True, help="one_shot, as the paper reads a prompt, or chunked")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of weights and of a random ranking")
    parser.add_argument("--trials", help="file that keeps the trials meanwhile")
    add_block(parser, Sizes)
    add_block(parser, Search, "search-")
    add_block(parser, Backbone, "backbone-")
    add_block(parser, Mamba, "mamba-")


def run(args: Namespace) -> None:
    import torch

    from recurformer.cli.checkpoints import device
    from recurformer.measure.longest import measure_longest

    sizes, search = read_block(args, Sizes), read_block(args, Search, "search-")
    trials = Path(args.trials) if args.trials else None
    frame = measure_longest(
        meta_backbone(read_block(args, Backbone, "backbone-")),
        args.name,
        args.beta,
        args.protocol,
        torch.device(device()),
        memory_gib=sizes.memory_gib,
        chunk=sizes.chunk,
        tolerance=search.tolerance,
        maximum=search.maximum,
        whole=search.whole,
        prefill_minutes=search.prefill_minutes,
        seed=args.seed,
        mamba=read_block(args, Mamba, "mamba-").model_dump(),
        trials=trials,
    )
    with atomic_path(args.memory) as path:
        frame.to_csv(path, index=False)
    if trials is not None:
        trials.unlink(missing_ok=True)
