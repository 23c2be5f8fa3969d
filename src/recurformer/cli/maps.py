"""What the stages share that average attention over windows of text."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from recurformer.cli.arguments import SEED, InputPath, OutputPath, add_block
from recurformer.study import Maps

if TYPE_CHECKING:
    from torch import Tensor


def add_map_arguments(parser: ArgumentParser, output: str, kind: str) -> None:
    """Model, output file, articles, name, seed and the `Maps` block."""
    parser.add_argument("checkpoint", type=InputPath, help="folder of the model before conversion")
    parser.add_argument(output, type=OutputPath, help=f"{kind} file to write")
    parser.add_argument("--articles", type=InputPath, required=True, help="Parquet file of articles")
    parser.add_argument("--name", required=True, help="name of the backbone in the measurements")
    parser.add_argument("--seed", type=SEED, default=0, help="seed of the choice of windows")
    add_block(parser, Maps)


def map_windows(args: Namespace, samples: int, tokens: int) -> "Tensor":
    """`samples` windows of `tokens` tokens, (samples, tokens)."""
    from recurformer.cli.checkpoints import open_texts, open_tokenizer
    from recurformer.corpora.windows import windows

    tokenizer = open_tokenizer(args.checkpoint)
    texts = open_texts(args.articles, split="train").text.tolist()
    return windows(texts, tokenizer, tokens=tokens, count=samples, seed=args.seed)
