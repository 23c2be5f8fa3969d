"""Evaluate a model by lm-eval tasks, through lm-eval's own HFLM."""

import tempfile
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from recurformer.cli.arguments import BETA, SEED, InputPath, OutputPath, add_block, read_block
from recurformer.cli.checkpoints import add_dtype
from recurformer.files import atomic_path
from recurformer.study import HashHopTask, Tasks

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the model")
    parser.add_argument("lm_eval", type=OutputPath, help="CSV file to write: one row a metric")
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument("--beta", type=BETA, required=True, help="share of heads replaced, for the measurements")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of the samples")
    add_dtype(parser)
    add_tasks(parser)


def add_tasks(parser: ArgumentParser) -> None:
    """What the tasks are and what they are made from."""
    parser.add_argument("--articles", type=InputPath, required=True, help="Parquet file of articles")
    add_block(parser, Tasks)
    add_block(parser, HashHopTask, "hashhop-")


def run_tasks(args: Namespace, model: "PreTrainedModel") -> "pd.DataFrame":
    """The rows of the tasks that the arguments of `add_tasks` name, with the tokenizer of `args.checkpoint`."""
    from recurformer.cli.checkpoints import open_texts, open_tokenizer
    from recurformer.evaluate.lm_eval import LocalSettings, lm_eval_rows
    from recurformer.tasks.hashhop import HashHopTask as HashHopText

    settings = read_block(args, Tasks)
    sizes = read_block(args, HashHopTask, "hashhop-")
    local = LocalSettings(
        open_tokenizer(args.checkpoint),
        samples=settings.samples,
        limits=dict(settings.limits),
        seed=args.seed,
        hashhop=HashHopText("official", sizes.hash_length, sizes.hops, sizes.characters),
        passkey_tokens=settings.tokens,
        articles=open_texts(args.articles, split="validation"),
        window=settings.tokens,
        ruler_lengths=settings.ruler_lengths,
    )
    with tempfile.TemporaryDirectory() as folder:
        return lm_eval_rows(model, settings.names, local, folder=folder, batch_size=settings.batch_size)


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model

    rows = run_tasks(args, open_model(args.checkpoint, args.dtype))
    with atomic_path(args.lm_eval) as path:
        rows.assign(model=args.name, beta=args.beta, seed=args.seed).to_csv(path, index=False)
    print(rows.to_string(index=False))
