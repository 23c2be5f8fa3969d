"""Stages that train models on the synthetic tasks: HashHop and associative recall."""

import math
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from recurformer.cli.checkpoints import device, open_model, open_tokenizer
from recurformer.cli.resumable import CHECKPOINTS, METRICS, TRAINED, keep_metrics, resumable_run, train_and_keep
from recurformer.cli.stage import BETA, RATE, Metric, argument, checkpoint, rows_argument, seed, stage, write_rows
from recurformer.study import Distributed, HashHopTask, Mamba, MqarTask, Training

if TYPE_CHECKING:
    import pandas as pd


@stage("training on HashHop", checkpoint("folder of the model to train"), *TRAINED, device="computes")
def train_hashhop(args: Namespace, settings: Training, task: HashHopTask, distributed: Distributed) -> dict[str, float]:
    """Train a model on HashHop: a small random one, or a converted one (section 4.1)."""
    from recurformer.data.hashhop import hashhop_dataset
    from recurformer.train.trainer import train

    tokenizer = open_tokenizer(args.checkpoint)
    dataset = hashhop_dataset(task, tokenizer, seed=args.seed)
    model = open_model(args.checkpoint, dtype="float32")
    options = {**settings.model_dump(), **distributed.training()}
    options["bf16"] &= model.device.type == "cuda"  # a processor is no faster at products of small models in bfloat16

    def learn(folder: Path) -> dict[str, float]:
        train(model, dataset, output_dir=folder, seed=args.seed, **options)
        return {}

    return train_and_keep(args, model, tokenizer, learn)


@stage(
    "train and test on multi-query associative recall",
    *(rows_argument("one row a tested slice"), METRICS, CHECKPOINTS),
    argument("--beta", type=BETA, required=True, help="fraction of heads replaced"),
    argument("--rate", type=RATE, required=True, help="learning rate"),
    seed("weights and samples"),
    metrics=[Metric("accuracy", "correct", over="queries", by=["split", "length", "pairs"]), Metric("fall", "fall")],
    device="computes",
)
def mqar(args: Namespace, settings: MqarTask, mamba: Mamba) -> "pd.DataFrame":
    """Train a small Transformer with replaced heads on multi-query associative recall, and test it (Figure 4)."""
    from recurformer.measure.mqar import run_mqar

    with resumable_run(args, args.rows) as folder:
        sizes = mamba.model_dump()
        rows = run_mqar(args.beta, args.rate, args.seed, settings, output_dir=folder, mamba=sizes, device=device())
        names = {"model": "mqar", "beta": args.beta, "peak_rate": args.rate, "seed": args.seed}
        rows = rows.assign(fall=keep_metrics(folder, args.metrics, {}, **names).get("fall", math.nan))
        write_rows(rows, args.rows)
    return rows
