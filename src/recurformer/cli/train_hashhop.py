"""Train a model on HashHop: a small one from nothing, or a converted one onwards (section 4.1)."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from recurformer.cli.arguments import InputPath, add_block, read_block
from recurformer.cli.training import Rows, add_training_arguments, train_and_keep
from recurformer.study import HashHopTask, Training


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the model to train")
    add_training_arguments(parser)
    add_block(parser, Training)
    add_block(parser, HashHopTask, "task-")


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model, open_tokenizer
    from recurformer.train.hashhop_data import hashhop_dataset
    from recurformer.train.trainer import train

    settings = read_block(args, Training)
    task = read_block(args, HashHopTask, "task-")
    tokenizer = open_tokenizer(args.checkpoint)
    dataset = hashhop_dataset(task, tokenizer, size=settings.steps * settings.batch_size, seed=args.seed)
    model = open_model(args.checkpoint, dtype="float32")
    on_card = model.device.type == "cuda"  # a processor is no faster at products of small models in bfloat16

    def learn(folder: Path, on_log: Rows | None) -> None:
        train(model, dataset, output_dir=folder, seed=args.seed, bf16=on_card, on_log=on_log, **settings.model_dump())

    train_and_keep(args, model, tokenizer, learn)
