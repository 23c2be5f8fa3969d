"""Keys hidden in a long text, over depth and length: read once, written from a full or a smaller cache."""

from argparse import ArgumentParser, Namespace

from recurformer.cli import identity
from recurformer.cli.arguments import InputPath, OutputPath, add_block, read_block
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import Needle


def add_arguments(parser: ArgumentParser) -> None:
    identity.add_arguments(parser)
    parser.add_argument("needle", type=OutputPath, help="CSV file to write: one row a prompt")
    parser.add_argument("--articles", type=InputPath, required=True, help="Parquet file of articles: the hay")
    add_block(parser, Needle)


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_texts, open_tokenizer
    from recurformer.evaluate.needle import needle_rows

    settings = read_block(args, Needle)
    tokenizer = open_tokenizer(args.checkpoint)
    texts = tuple(open_texts(args.articles, split="validation").text)
    rows = identity.measure(
        args,
        lambda model, original, new_cache: needle_rows(
            model,
            tokenizer,
            original,
            texts,
            grid=settings.grid(),
            depths=settings.depths,
            seed=read_block(args, identity.Identity).seed,
            new_cache=new_cache,
            progress=progress("prompt"),
        ),
    )
    with atomic_path(args.needle) as path:
        rows.to_csv(path, index=False)
    sums = rows.groupby(["method", "setting", "ratio", "task"])[["correct", "queries"]].sum()
    print((sums.correct / sums.queries).rename("accuracy").reset_index().to_string(index=False))
