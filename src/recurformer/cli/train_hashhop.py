"""Train a model on HashHop: a small one from nothing, or a converted one onwards (section 4.1)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import InputPath, add_block, read_block
from recurformer.cli.training import add_training_arguments, train_and_keep
from recurformer.study import HashHopTask, Training


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the model to train")
    add_training_arguments(parser)
    add_block(parser, Training)
    add_block(parser, HashHopTask, "task-")


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model, open_tokenizer
    from recurformer.train.hashhop_data import hashhop_dataset

    settings = read_block(args, Training)
    task = read_block(args, HashHopTask, "task-")
    tokenizer = open_tokenizer(args.checkpoint)
    dataset = hashhop_dataset(task, tokenizer, size=settings.steps * settings.batch_size, seed=args.seed)
    train_and_keep(args, open_model(args.checkpoint, dtype="float32"), tokenizer, dataset, settings)
