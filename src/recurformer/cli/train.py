"""Continue training a model on windows of the training articles (section 4.2)."""

from argparse import ArgumentParser, Namespace

from recurformer.cli.arguments import COUNT, InputPath, add_block, read_block
from recurformer.cli.training import add_training_arguments, train_and_keep
from recurformer.study import Training


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=InputPath, help="folder of the model to train")
    parser.add_argument("--articles", type=InputPath, required=True, help="Parquet file of articles")
    parser.add_argument("--tokens", type=COUNT, required=True, help="length of a training window")
    add_training_arguments(parser)
    add_block(parser, Training)


def run(args: Namespace) -> None:
    from recurformer.cli.checkpoints import open_model, open_texts, open_tokenizer
    from recurformer.corpora.windows import windows
    from recurformer.train.data import WindowDataset

    settings = read_block(args, Training)
    tokenizer = open_tokenizer(args.checkpoint)
    texts = open_texts(args.articles, split="train").text.tolist()
    input_ids = windows(texts, tokenizer, tokens=args.tokens, seed=args.seed)
    model = open_model(args.checkpoint, dtype="float32")
    train_and_keep(args, model, tokenizer, WindowDataset(input_ids, seed=args.seed), settings)
