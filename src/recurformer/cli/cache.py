"""Count the cache of a shape at every share of replaced heads, from the model's own cache objects (Tables 2 and 4)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import BETA, SEED, InputPath, OutputPath, add_block, read_block
from recurformer.cli.backbone import meta_backbone
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import Backbone, Mamba, Selection, Sizes


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("cache", type=OutputPath, help="CSV file to write")
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument(
        "--profile",
        type=InputPath,
        nargs="*",
        default=[],
        help="head profile that ranks the heads; without one, random",
    )
    parser.add_argument("--betas", type=BETA, nargs="+", required=True, help="shares of heads replaced")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of a random ranking")
    add_block(parser, Sizes)
    add_block(parser, Backbone, "backbone-")
    add_block(parser, Selection, "selection-")
    add_block(parser, Mamba, "mamba-")


def run(args: Namespace) -> None:
    from recurformer.heads.profile import HeadProfile
    from recurformer.measure.cache import measure_cache

    sizes = read_block(args, Sizes)
    selection = read_block(args, Selection, "selection-")
    frame = measure_cache(
        meta_backbone(read_block(args, Backbone, "backbone-")),
        args.name,
        args.betas,
        lengths=sizes.lengths,
        units=sizes.units,
        profile=HeadProfile.load(args.profile[0]) if args.profile else None,
        scope=selection.scope,
        by=selection.by,
        seed=args.seed,
        mamba=read_block(args, Mamba, "mamba-").model_dump(),
        progress=progress("conversion"),
    )
    with atomic_path(args.cache) as path:
        frame.to_csv(path, index=False)
