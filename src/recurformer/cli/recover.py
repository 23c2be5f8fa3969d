"""Stages that train models on text: continual training, and recovery by a recipe, with curves of quality."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from recurformer.cli.arguments import COUNT, InputPath, OutputPath
from recurformer.cli.metrics import Metric, metrics_of, perplexity_of
from recurformer.cli.resumable import train_and_keep, trained
from recurformer.cli.stage import ARTICLES, argument, checkpoint, progress, stage
from recurformer.files import atomic_path
from recurformer.study import Arm, Mamba, Training

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor
    from transformers import PreTrainedModel

    from recurformer.recover.curve import RecoveryCurve

QUALITY = (Metric("perplexity", "negative_log_likelihood", of=perplexity_of), Metric("kl", "divergence"))
"""Final metrics of a recovery curve."""


def curve(required: bool) -> Callable[[ArgumentParser], None]:
    """The text that is learnt from and measured on, and the file of the curve."""

    def add(parser: ArgumentParser) -> None:
        ARTICLES(parser)
        parser.add_argument("--tokens", type=COUNT, required=True, help="length of a window")
        parser.add_argument(
            "--recovery", type=OutputPath, required=required, help="CSV file to write: quality while the model learns"
        )
        parser.add_argument(
            "--held-out", type=COUNT, default=16, help="validation windows for each point of the curve (default: 16)"
        )
        parser.add_argument("--halvings", type=COUNT, default=7, help="points of the curve (default: 7)")

    return add


def curve_of(
    args: Namespace, original: "PreTrainedModel", model: "PreTrainedModel", learnt: "Tensor", folder: Path
) -> "RecoveryCurve":
    """A curve over the first windows of the validation articles, the same for every seed of a training."""
    from recurformer.cli.texts import text_windows
    from recurformer.recover.curve import RecoveryCurve

    held_out = text_windows(args, args.tokens, args.held_out, split="validation")
    return RecoveryCurve(original, model, held_out, learnt, folder, args.halvings, partial(print, flush=True))


def keep_curve(args: Namespace, curve: "RecoveryCurve", arm: str) -> dict[str, float]:
    """Write the curve with the names of its run and the bytes that a cache of both of the paper's lengths has; the
    quality at its end.
    """
    from recurformer.measure.cache import count_cache
    from recurformer.paper import CACHE_LENGTHS

    sizes = {f"bytes_{length}": int(count_cache(curve.model, length).bytes.sum()) for length in CACHE_LENGTHS.values()}
    mixer = getattr(curve.model.config, "mixer", "none")
    keep_rows(args, curve.rows.assign(**sizes), args.recovery, arm, mixer)
    return metrics_of(QUALITY, curve.rows[curve.rows.tokens == curve.rows.tokens.max()])


def keep_rows(args: Namespace, rows: "DataFrame", file: Path, arm: str, mixer: str) -> None:
    """Write rows with the names of their run."""
    named = rows.assign(model=args.name, arm=arm, mixer=mixer, beta=args.beta, seed=args.seed)
    with atomic_path(file) as path:
        named.to_csv(path, index=False)


@stage(
    "continual training on text",
    checkpoint("folder of the model to train"),
    argument("--original", type=InputPath, help="with --recovery: folder of the model before any change"),
    *(curve(required=False), trained),
    device="computes",
    launched=True,
)
def train(args: Namespace, settings: Training) -> dict[str, float]:
    """Continue training a model on windows of the training articles (section 4.2)."""
    from recurformer.cli.checkpoints import open_model, open_tokenizer
    from recurformer.cli.texts import text_windows
    from recurformer.train.data import WindowDataset
    from recurformer.train.trainer import train

    if bool(args.recovery) != bool(args.original):
        raise ValueError("--recovery and --original: give both or neither")
    tokenizer = open_tokenizer(args.checkpoint)
    input_ids = text_windows(args, args.tokens, seed=args.seed)
    dataset = WindowDataset(input_ids, seed=args.seed)
    model = open_model(args.checkpoint, dtype="float32")

    def learn(folder: Path) -> dict[str, float]:
        recovery = on_log = None
        if args.recovery:
            recovery = curve_of(args, open_model(args.original, dtype="float32"), model, input_ids, folder)
            recovery.add(0, 0.0)
            on_log = recovery.of_training(settings.steps, settings.log_every)
        train(model, dataset, output_dir=folder, seed=args.seed, bf16=True, on_log=on_log, **settings.model_dump())
        return {} if recovery is None else keep_curve(args, recovery, arm="paper" if args.beta else "original")

    return train_and_keep(args, model, tokenizer, learn)


@stage(
    "conversion and recovery by a recipe other than the paper's",
    checkpoint("folder of the original"),
    argument("--heads", type=InputPath, required=True, help="JSON file written by `recurformer select`"),
    argument("--arm", required=True, help="name of the recipe in the measurements"),
    curve(required=True),
    argument(
        "--layer-errors", type=OutputPath, required=True, help="CSV file to write: error of the closed form, by layer"
    ),
    trained,
    device="computes",
)
def recover(args: Namespace, settings: Training, arm: Annotated[Arm, "arm-"], mamba: Mamba) -> dict[str, float]:
    """Convert a model and let it learn from its original by one recipe, an arm of the recovery experiment."""
    from transformers import set_seed

    from recurformer.cli.checkpoints import open_model, open_tokenizer, read_heads
    from recurformer.cli.texts import text_windows
    from recurformer.model.convert import convert
    from recurformer.recover.arm import run_arm

    recipe = settings.model_dump() | arm.training()
    tokenizer = open_tokenizer(args.checkpoint)
    input_ids = text_windows(args, args.tokens, seed=args.seed)
    original = open_model(args.checkpoint, dtype="float32")
    set_seed(args.seed)
    model = convert(original, read_heads(args.heads), arm.mixer, **mamba.model_dump() | arm.window()).eval()
    if arm.weights == "random":
        model = type(model)(model.config).to(model.device).eval()

    def learn(folder: Path) -> dict[str, float]:
        recovery = curve_of(args, original, model, input_ids, folder)
        errors = run_arm(original, model, input_ids, curve=recovery, folder=folder, seed=args.seed,
            bf16=True, progress=progress("calibrate: layer"), **arm.arguments(), **recipe)  # fmt: skip
        keep_rows(args, errors, args.layer_errors, args.arm, arm.mixer)
        return keep_curve(args, recovery, args.arm)

    return train_and_keep(args, model, tokenizer, learn)
