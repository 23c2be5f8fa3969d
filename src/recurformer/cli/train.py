"""Continue training a model on windows of the training articles (section 4.2)."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from recurformer.cli.arguments import InputPath, add_block, read_block
from recurformer.cli.curves import add_curve_arguments, curve_of, keep_curve
from recurformer.cli.training import Rows, add_training_arguments, train_and_keep
from recurformer.study import Training


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the model to train")
    parser.add_argument("--original", type=InputPath, help="with --recovery: folder of the model before any change")
    add_curve_arguments(parser)
    add_training_arguments(parser)
    add_block(parser, Training)


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model, open_texts, open_tokenizer
    from recurformer.corpora.windows import windows
    from recurformer.train.data import WindowDataset
    from recurformer.train.trainer import train

    settings = read_block(args, Training)
    if bool(args.recovery) != bool(args.original):
        raise ValueError("--recovery and --original: give both or neither")
    tokenizer = open_tokenizer(args.checkpoint)
    texts = open_texts(args.articles, split="train").text.tolist()
    input_ids = windows(texts, tokenizer, tokens=args.tokens, seed=args.seed)
    dataset = WindowDataset(input_ids, seed=args.seed)
    model = open_model(args.checkpoint, dtype="float32")

    def learn(folder: Path, on_log: Rows | None) -> None:
        curve = None
        if args.recovery:
            curve = curve_of(args, open_model(args.original, dtype="float32"), model, tokenizer, input_ids, folder)
            curve.add(0, 0.0)
            on_log = curve.of_training(settings.steps, settings.log_every, on_log)
        train(model, dataset, output_dir=folder, seed=args.seed, bf16=True, on_log=on_log, **settings.model_dump())
        if curve is not None:
            keep_curve(args, curve, arm="paper" if args.beta else "original")

    train_and_keep(args, model, tokenizer, learn)
