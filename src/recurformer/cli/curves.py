"""What the stages share that draw a recovery curve."""

from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recurformer.cli.arguments import COUNT, InputPath, OutputPath
from recurformer.files import atomic_path

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from recurformer.recover.curve import RecoveryCurve


def add_curve_arguments(parser: ArgumentParser, required: bool = False) -> None:
    """The text that is learnt from and measured on, and the file of the curve."""
    parser.add_argument("--articles", type=InputPath, required=True, help="Parquet file of articles")
    parser.add_argument("--tokens", type=COUNT, required=True, help="length of a window")
    parser.add_argument(
        "--recovery", type=OutputPath, required=required, help="CSV file to write: quality while the model learns"
    )
    parser.add_argument("--held-out", type=COUNT, default=16, help="validation windows it is measured on (default: 16)")
    parser.add_argument("--halvings", type=COUNT, default=7, help="points of a training (default: 7)")


def curve_of(
    args: Namespace,
    original: "PreTrainedModel",
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    learnt: "Tensor",
    folder: Path,
) -> "RecoveryCurve":
    """A curve over the first windows of the validation articles, the same for every seed of a training."""
    from recurformer.cli.checkpoints import open_texts
    from recurformer.corpora.windows import windows
    from recurformer.recover.curve import RecoveryCurve

    texts = open_texts(args.articles, split="validation").text.tolist()
    held_out = windows(texts, tokenizer, tokens=args.tokens, count=args.held_out)
    say = partial(print, flush=True)
    return RecoveryCurve(original, model, held_out, learnt, folder, args.halvings, say)


def keep_curve(args: Namespace, curve: "RecoveryCurve", arm: str) -> None:
    """Write the curve with the names of its run and the bytes that a cache of both of the paper's lengths has."""
    from recurformer.measure.cache import count_cache
    from recurformer.paper.sizes import CACHE_LENGTHS

    held = {f"bytes_{length}": int(count_cache(curve.model, length).bytes.sum()) for length in CACHE_LENGTHS.values()}
    mixer = getattr(curve.model.config, "mixer", "none")
    keep_rows(args, curve.rows.assign(**held), args.recovery, arm, mixer)


def keep_rows(args: Namespace, rows: "DataFrame", file: Path, arm: str, mixer: str) -> None:
    """Write rows with the names of their run."""
    named = rows.assign(model=args.name, arm=arm, mixer=mixer, beta=args.beta, seed=args.seed)
    with atomic_path(file) as path:
        named.to_csv(path, index=False)
