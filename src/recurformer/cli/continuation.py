"""Likelihood of what follows a prompt, from the full or smaller cache that the prompt left."""

import math
from argparse import ArgumentParser, Namespace

from recurformer.cli import identity
from recurformer.cli.arguments import InputPath, OutputPath, add_block, read_block
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import Continuation


def add_arguments(parser: ArgumentParser) -> None:
    identity.add_arguments(parser)
    parser.add_argument("continuation", type=OutputPath, help="CSV file to write: one row a window and 32 positions")
    parser.add_argument("--articles", type=InputPath, required=True, help="Parquet file of articles")
    add_block(parser, Continuation)


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_texts, open_tokenizer
    from recurformer.corpora.windows import windows
    from recurformer.evaluate.continuation import continuation_rows

    settings = read_block(args, Continuation)
    texts = open_texts(args.articles, split="validation").text
    length = settings.prompt + settings.tokens
    # the same text for every model and seed
    input_ids = windows(list(texts), open_tokenizer(args.checkpoint), length, settings.windows)
    rows = identity.measure(
        args,
        lambda model, original, new_cache: continuation_rows(
            model,
            original,
            input_ids,
            prompt=settings.prompt,
            batch_size=settings.batch_size,
            new_cache=new_cache,
            progress=progress("window"),
        ),
    )
    with atomic_path(args.continuation) as path:
        rows.to_csv(path, index=False)
    sums = rows.groupby(["method", "setting", "ratio"])[["negative_log_likelihood", "tokens"]].sum()
    perplexity = (sums.negative_log_likelihood / sums.tokens).map(math.exp)
    print(perplexity.rename("perplexity").reset_index().to_string(index=False))
