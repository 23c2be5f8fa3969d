"""Recency ratios of every head over windows of text (equation 1; appendix B)."""

from argparse import ArgumentParser, Namespace
from dataclasses import replace

from recurformer.cli.arguments import SEED, InputPath, OutputPath, add_block, read_block
from recurformer.cli.progress import progress
from recurformer.study import Profiling


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the model")
    parser.add_argument("profile", type=OutputPath, help="Parquet file to write")
    parser.add_argument("--articles", type=InputPath, required=True, help="Parquet file of articles")
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of the choice of windows")
    add_block(parser, Profiling)


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model, open_texts, open_tokenizer
    from recurformer.corpora.windows import windows
    from recurformer.heads.profiling import profile_heads

    settings = read_block(args, Profiling)
    texts = open_texts(args.articles, split="train").text.tolist()
    tokenizer = open_tokenizer(args.checkpoint)
    input_ids = windows(texts, tokenizer, tokens=settings.tokens, count=settings.samples, seed=args.seed)
    profile = profile_heads(
        open_model(args.checkpoint),
        input_ids,
        window=settings.window,
        threshold=settings.threshold,
        progress=progress("window"),
    )
    replace(profile, model=args.name).save(args.profile)
