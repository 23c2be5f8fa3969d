"""Measure cache size and cache peak of a full-size model with random weights on a device (Tables 1, 2 and 4)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import BETA, SEED, OutputPath, add_block, read_block
from recurformer.cli.backbone import meta_backbone
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import Backbone, Mamba, Sizes


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("cache_peak", type=OutputPath, help="CSV file to write")
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument("--betas", type=BETA, nargs="+", required=True, help="shares of heads replaced")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of the weights and of the ranking of heads")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="default: %(default)s")
    add_block(parser, Sizes)
    add_block(parser, Backbone, "backbone-")
    add_block(parser, Mamba, "mamba-")


def run(args: Namespace) -> None:
    import torch

    from recurformer.measure.cache_peak import measure_cache_peak

    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here")
    sizes = read_block(args, Sizes)
    frame = measure_cache_peak(
        meta_backbone(read_block(args, Backbone, "backbone-")).config,
        args.name,
        args.betas,
        sizes.lengths,
        device=args.device,
        memory_gib=sizes.memory_gib,
        seed=args.seed,
        mamba=read_block(args, Mamba, "mamba-").model_dump(),
        progress=progress("model"),
    )
    with atomic_path(args.cache_peak) as path:
        frame.to_csv(path, index=False)
