"""Stages that train models on text: on lists of its words, continually, or by a recipe, with curves of quality."""

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recurformer.cli.checkpoints import open_model, open_tokenizer, read_heads
from recurformer.cli.resumable import TRAINED, arm_of, train_and_keep
from recurformer.cli.stage import (
    ARTICLES,
    COUNT,
    Argument,
    InputPath,
    Metric,
    OutputPath,
    argument,
    checkpoint,
    metrics_of,
    perplexity_of,
    progress,
    stage,
)
from recurformer.cli.texts import check_length, open_texts, text_windows
from recurformer.files import atomic_path
from recurformer.study import Copying, Distributed, Mamba, Recipe, Training

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor
    from transformers import PreTrainedModel

    from recurformer.recover.run import RecoveryCurve

QUALITY = (Metric("perplexity", "negative_log_likelihood", of=perplexity_of), Metric("kl", "divergence"))
"""Final metrics of a recovery curve."""


def curve(required: bool) -> list[Argument]:
    """The text that is learnt from and measured on, and the file of the curve."""
    recovery = "CSV file to write: quality while the model learns"
    return [
        ARTICLES,
        argument("--tokens", type=COUNT, required=True, help="length of a window"),
        argument("--recovery", type=OutputPath, required=required, help=recovery),
        argument(
            "--held-out", type=COUNT, default=16, help="validation windows for each point of the curve (default: 16)"
        ),
        argument("--halvings", type=COUNT, default=7, help="points of the curve (default: 7)"),
    ]


def curve_of(
    args: Namespace,
    original: "PreTrainedModel",
    model: "PreTrainedModel",
    learnt: "Tensor",
    folder: Path,
    **settings: object,
) -> "RecoveryCurve":
    """A curve over the first windows of the validation articles, the same for every seed of a training.

    A run with the same settings, models and windows takes up what `folder` keeps of it.
    """
    from recurformer.recover.kept import KeptSteps
    from recurformer.recover.run import RecoveryCurve

    held_out = text_windows(args, args.tokens, args.held_out, split="validation")
    kept = KeptSteps(folder / "steps", (original, model), (held_out, learnt), **settings)
    return RecoveryCurve(original, model, held_out, kept, args.halvings, say=partial(print, flush=True))


def keep_curve(args: Namespace, curve: "RecoveryCurve", learnt: "Tensor") -> dict[str, float]:
    """Write the curve with the names of its run, the bytes that a cache of both of the paper's lengths has, and the
    tokens of the text that is `learnt`; the quality at its end, and by how much the held-out loss may still have fallen
    before.
    """
    from recurformer.measure.cache import count_cache
    from recurformer.paper import CACHE_LENGTHS

    sizes = {f"bytes_{length}": int(count_cache(curve.model, length).bytes.sum()) for length in CACHE_LENGTHS.values()}
    mixer = getattr(curve.model.config, "mixer", "none")
    rows = curve.rows.drop(columns="stage")
    keep_rows(args, rows.assign(**sizes, text_tokens=learnt.numel()), args.recovery, mixer)
    return metrics_of(QUALITY, rows[rows.tokens == rows.tokens.max()]) | {"fall": curve.fall}


def keep_rows(args: Namespace, rows: "DataFrame", file: Path, mixer: str) -> None:
    """Write rows with the names of their run."""
    named = rows.assign(model=args.name, arm=arm_of(args), mixer=mixer, beta=args.beta, seed=args.seed)
    with atomic_path(file) as path:
        named.to_csv(path, index=False)


@stage(
    "training to copy lists of words",
    checkpoint("folder of the model to train"),
    ARTICLES,
    *TRAINED,
    device="computes",
)
def train_copying(args: Namespace, settings: Copying) -> dict[str, float]:
    """Train a small model to copy lists of the tokens of frequent words, before it learns text."""
    from recurformer.data.datasets import Curriculum
    from recurformer.data.lookups import copy_batch, frequent_words
    from recurformer.data.windows import encode_text
    from recurformer.train.trainer import train

    check_length(args.checkpoint, max(settings.lengths))
    tokenizer = open_tokenizer(args.checkpoint)
    words = frequent_words(open_texts(args.articles, "train").text, settings.words)
    tokens = sorted({token for word in words for token in encode_text(tokenizer, f" {word}")})
    recipe = settings.model_dump(exclude={"words", "lengths", "curriculum_share"})
    curriculum = round(settings.curriculum_share * settings.steps)
    lengths = [(length,) for length in settings.lengths]
    lists = Curriculum(partial(copy_batch, tokens=tokens), lengths, settings.batch_size, args.seed, curriculum)
    model = open_model(args.checkpoint, dtype="float32")

    def learn(folder: Path) -> dict[str, float]:
        train(model, lists, output_dir=folder, seed=args.seed, **recipe | {"batch_size": 1})  # an item is a batch
        return {}

    return train_and_keep(args, model, tokenizer, learn)


@stage(
    "continual training on text",
    checkpoint("folder of the model to train"),
    argument("--original", type=InputPath, help="with --recovery: folder of the model before any change"),
    *(*curve(required=False), *TRAINED),
    device="computes",
)
def train(args: Namespace, settings: Training, distributed: Distributed) -> dict[str, float]:
    """Continue training a model on windows of the training articles (section 4.2)."""
    from recurformer.data.datasets import WindowDataset
    from recurformer.train.trainer import train

    if bool(args.recovery) != bool(args.original):
        raise ValueError("--recovery and --original: give both or neither")
    if args.recovery and distributed.processes > 1:
        raise ValueError("--recovery: several processes measure no curve; leave it out, or distributed")
    tokenizer = open_tokenizer(args.checkpoint)
    input_ids = text_windows(args, args.tokens, seed=args.seed)
    dataset = WindowDataset(input_ids, seed=args.seed)
    model = open_model(args.checkpoint, dtype="float32")

    def learn(folder: Path) -> dict[str, float]:
        recovery = on_log = None
        if args.recovery:
            original = open_model(args.original, dtype="float32")
            recovery = curve_of(args, original, model, input_ids, folder, training=settings.model_dump())
            recovery.add("at the start")
            on_log = recovery.of_training("trained", settings.steps, settings.log_every)
        options = {**settings.model_dump(), **distributed.training()}
        train(model, dataset, output_dir=folder, seed=args.seed, on_log=on_log, **options)
        return {} if recovery is None else keep_curve(args, recovery, input_ids)

    return train_and_keep(args, model, tokenizer, learn)


@stage(
    "conversion and recovery by a recipe other than the paper's",
    checkpoint("folder of the original"),
    argument("--heads", type=InputPath, required=True, help="JSON file written by `recurformer select`"),
    *curve(required=True),
    argument(
        "--layer-errors", type=OutputPath, required=True, help="CSV file to write: error of the closed form, by layer"
    ),
    *TRAINED,
    device="computes",
)
def recover(args: Namespace, settings: Training, recipe: Recipe, mamba: Mamba) -> dict[str, float]:
    """Convert a model and let it learn from its original by one recipe, an arm of the recovery experiment."""
    from recurformer.recover.run import converted_by, recover

    tokenizer = open_tokenizer(args.checkpoint)
    input_ids = text_windows(args, args.tokens, seed=args.seed)
    original = open_model(args.checkpoint, dtype="float32")
    model = converted_by(recipe, original, read_heads(args.heads), args.seed, **mamba.model_dump())

    def learn(folder: Path) -> dict[str, float]:
        run = {"training": settings.model_dump(), "recipe": recipe.model_dump(), "seed": args.seed}
        curve = curve_of(args, original, model, input_ids, folder, **run)
        recovered = recover(
            original, model, input_ids, recipe, curve,
            training=settings, folder=folder, seed=args.seed, bf16=True, progress=progress,
        )  # fmt: skip
        keep_rows(args, recovered.errors, args.layer_errors, recipe.mixer)
        return keep_curve(args, curve, input_ids)

    return train_and_keep(args, model, tokenizer, learn)
