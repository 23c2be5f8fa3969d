"""Stages that train models: on text, on HashHop, by other recipes of recovery, and on associative recall."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from recurformer.cli.arguments import BETA, RATE, InputPath, OutputPath
from recurformer.cli.metrics import Metric
from recurformer.cli.resumable import (
    CHECKPOINTS,
    METRICS,
    curve,
    curve_of,
    keep_curve,
    keep_metrics,
    keep_rows,
    resumable_run,
    train_and_keep,
    trained,
)
from recurformer.cli.stage import argument, checkpoint, csv, progress, seed, stage
from recurformer.study import Arm, HashHopTask, Mamba, MqarTask, Training

if TYPE_CHECKING:
    import pandas as pd

TO_TRAIN = checkpoint("folder of the model to train")
RECALL = csv("mqar", "one row a tested slice")


@stage(
    "continual training on text",
    TO_TRAIN,
    argument("--original", type=InputPath, help="with --recovery: folder of the model before any change"),
    *(curve(required=False), trained),
    device="computes",
    launched=True,
)
def train(args: Namespace, settings: Training) -> dict[str, float]:
    """Continue training a model on windows of the training articles (section 4.2)."""
    from recurformer.cli.checkpoints import open_model, open_tokenizer, text_windows
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

    from recurformer.cli.checkpoints import open_model, open_tokenizer, read_heads, text_windows
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


@stage("training on HashHop", TO_TRAIN, trained, device="computes", launched=True)
def train_hashhop(args: Namespace, settings: Training, task: Annotated[HashHopTask, "task-"]) -> dict[str, float]:
    """Train a model on HashHop: a small random one, or a converted one (section 4.1)."""
    from recurformer.cli.checkpoints import open_model, open_tokenizer
    from recurformer.train.hashhop_data import hashhop_dataset
    from recurformer.train.trainer import train

    tokenizer = open_tokenizer(args.checkpoint)
    dataset = hashhop_dataset(task, tokenizer, size=settings.steps * settings.batch_size, seed=args.seed)
    model = open_model(args.checkpoint, dtype="float32")
    on_card = model.device.type == "cuda"  # a processor is no faster at products of small models in bfloat16

    def learn(folder: Path) -> dict[str, float]:
        train(model, dataset, output_dir=folder, seed=args.seed, bf16=on_card, **settings.model_dump())
        return {}

    return train_and_keep(args, model, tokenizer, learn)


@stage(
    "train and test on multi-query associative recall",
    *(RECALL.add, METRICS, CHECKPOINTS),
    argument("--beta", type=BETA, required=True, help="share of heads replaced"),
    argument("--rate", type=RATE, required=True, help="learning rate"),
    seed("weights and samples"),
    metrics=[Metric("accuracy", "correct", over="queries", by=["split", "length", "pairs"])],
    device="computes",
)
def mqar(args: Namespace, task: MqarTask, mamba: Annotated[Mamba, "mamba-"]) -> "pd.DataFrame":
    """Train a small Transformer with replaced heads on multi-query associative recall, and test it (Figure 4)."""
    from recurformer.cli.checkpoints import device
    from recurformer.evaluate.mqar import run_mqar

    with resumable_run(args, args.mqar) as folder:
        sizes = mamba.model_dump()
        rows = run_mqar(args.beta, args.rate, args.seed, task, output_dir=folder, mamba=sizes, device=device())
        keep_metrics(folder, args.metrics, model="mqar", beta=args.beta, peak_rate=args.rate, seed=args.seed)
        RECALL.write(rows, args.mqar)
    return rows
