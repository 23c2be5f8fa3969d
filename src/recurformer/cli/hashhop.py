"""Generation quality on HashHop: how much of the chain a model reproduces before its first error (Tables 2 and 4)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import BETA, SEED, InputPath, OutputPath, add_block, read_block
from recurformer.cli.checkpoints import add_dtype
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import HashHopEvaluation, HashHopTask


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the model")
    parser.add_argument("hashhop", type=OutputPath, help="CSV file to write: one row a sample")
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument("--beta", type=BETA, required=True, help="share of heads replaced, for the measurements")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of the samples")
    add_dtype(parser)
    add_block(parser, HashHopEvaluation)
    add_block(parser, HashHopTask, "task-")


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model, open_tokenizer
    from recurformer.evaluate.hashhop import hashhop_rows

    settings = read_block(args, HashHopEvaluation)
    task = read_block(args, HashHopTask, "task-")
    rows = hashhop_rows(
        open_model(args.checkpoint, args.dtype),
        open_tokenizer(args.checkpoint),
        task,
        variants=settings.variants,
        samples=settings.samples,
        seed=args.seed,
        batch_size=settings.batch_size,
        progress=progress("sample"),
    )
    with atomic_path(args.hashhop) as path:
        rows.assign(model=args.name, beta=args.beta, seed=args.seed).to_csv(path, index=False)
    for variant, quality in (rows.correct / rows.hops).groupby(rows.variant).mean().items():
        print(f"{variant}: h_gq {quality:.3f}")
