"""Recency ratios of every head over HashHop samples, for models that know no other language."""

from argparse import ArgumentParser, Namespace
from dataclasses import replace

from recurformer.cli.arguments import SEED, InputPath, OutputPath, add_block, read_block
from recurformer.cli.progress import progress
from recurformer.study import HashHopTask, RecencyRatio


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the model")
    parser.add_argument("profile", type=OutputPath, help="Parquet file to write")
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of the samples")
    add_block(parser, RecencyRatio)
    add_block(parser, HashHopTask, "task-")


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model, open_tokenizer
    from recurformer.heads.profiling import profile_heads
    from recurformer.train.hashhop_data import hashhop_dataset

    settings = read_block(args, RecencyRatio)
    task = read_block(args, HashHopTask, "task-")
    dataset = hashhop_dataset(task, open_tokenizer(args.checkpoint), size=settings.samples, seed=args.seed)
    batch = dataset.collate([dataset[index] for index in range(settings.samples)])
    profile = profile_heads(
        open_model(args.checkpoint),
        batch["input_ids"],
        window=settings.window,
        threshold=settings.threshold,
        attention_mask=batch.get("attention_mask"),
        progress=progress("sample"),
    )
    replace(profile, model=args.name).save(args.profile)
