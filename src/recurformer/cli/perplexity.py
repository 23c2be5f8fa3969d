"""Perplexity on held-out articles: before conversion, converted, and trained (Table 3)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import BETA, SEED, InputPath, OutputPath, add_block, read_block
from recurformer.cli.checkpoints import add_dtype
from recurformer.cli.progress import progress
from recurformer.files import atomic_path
from recurformer.study import Perplexity

STAGES = ("before", "converted", "trained")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("perplexity", type=OutputPath, help="CSV file to write: one row an article")
    for stage in STAGES:
        parser.add_argument(f"--{stage}", type=InputPath, required=True, help=f"folder of the model, {stage}")
    parser.add_argument("--articles", type=InputPath, required=True, help="Parquet file of articles")
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument("--beta", type=BETA, required=True, help="share of heads replaced, for the measurements")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of the training, for the measurements")
    add_dtype(parser)
    add_block(parser, Perplexity)


def run(args: Namespace) -> None:
    import pandas as pd

    from recurformer.cli.checkpoints import open_model, open_texts, open_tokenizer
    from recurformer.evaluate.perplexity import perplexity, perplexity_rows

    settings = read_block(args, Perplexity)
    articles = open_texts(args.articles, "validation", ("title", "text"))
    tokenizer = open_tokenizer(args.before)
    frames = []
    for stage in STAGES:
        model = open_model(getattr(args, stage), args.dtype)
        rows = perplexity_rows(
            model,
            tokenizer,
            articles,
            tokens=settings.tokens,
            windows=settings.windows,
            bos=settings.bos,
            progress=progress(f"{stage}: window"),
        )
        print(f"{stage}: perplexity {perplexity(rows):.3f} over {rows.tokens.sum():,} tokens")
        frames.append(rows.assign(model=args.name, beta=args.beta, seed=args.seed, stage=stage))
    with atomic_path(args.perplexity) as path:
        pd.concat(frames).to_csv(path, index=False)
