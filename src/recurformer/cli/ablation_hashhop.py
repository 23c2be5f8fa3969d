"""Generation quality on HashHop from a full or a smaller cache, at any sizes of the task, and what the cache holds."""

from argparse import ArgumentParser, Namespace

from recurformer.cli import identity
from recurformer.cli.arguments import OutputPath, add_block, read_block
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import HashHopEvaluation, HashHopTask, HeadScores


def add_arguments(parser: ArgumentParser) -> None:
    identity.add_arguments(parser)
    parser.add_argument("hashhop", type=OutputPath, help="CSV file to write: one row a sample")
    add_block(parser, HashHopEvaluation)
    add_block(parser, HashHopTask, "task-")


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_tokenizer
    from recurformer.evaluate.hashhop import hashhop_rows
    from recurformer.heads.probes import HashHopProbes

    settings = read_block(args, HashHopEvaluation)
    task = read_block(args, HashHopTask, "task-")
    seed, tokenizer = read_block(args, identity.Identity).seed, open_tokenizer(args.checkpoint)
    knows_hashes_only = task.form == "tokens"
    rows = identity.measure(
        args,
        lambda model, original, new_cache: hashhop_rows(
            model,
            tokenizer,
            task,
            **settings.model_dump(),
            seed=seed,
            new_cache=new_cache,
            original=original,
            progress=progress("sample"),
        ),
        HashHopProbes(tokenizer, task, HeadScores(), seed).repeats() if knows_hashes_only else None,
    )
    with atomic_path(args.hashhop) as path:
        rows.to_csv(path, index=False)
    quality = (rows.correct / rows.hops).groupby([rows.method, rows.setting, rows.ratio, rows.variant]).mean()
    print(quality.rename("h_gq").reset_index().to_string(index=False))
