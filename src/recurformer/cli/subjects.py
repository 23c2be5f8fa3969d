"""What the measurements of subjects share: the measured one, its columns, and changes that need no training.

Those (eviction, untrained mixers) are made in the process that measures them, at every setting.
"""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from recurformer.cli.arguments import InputPath
from recurformer.cli.stage import DTYPE, NAME, checkpoint, seed
from recurformer.records import ancestors, final_metrics, record_of
from recurformer.study import Change, Selection
from recurformer.study.subject import Subject

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedConfig, PreTrainedModel

    from recurformer.heads.probes import Repeated
    from recurformer.measure.generate import NewCache

    Changed = tuple[PreTrainedModel, NewCache | None, dict[str, Any]]

RowsOf = Callable[["PreTrainedModel", "PreTrainedConfig", "NewCache | None"], "pd.DataFrame"]


def measured(parser: ArgumentParser) -> None:
    """The subject, its model, and what a change of it in this process needs."""
    checkpoint()(parser)
    NAME(parser)
    parser.add_argument("--subject", default="original", help="path of the subject, as in results/language/BACKBONE")
    parser.add_argument("--original", type=InputPath, required=True, help="folder of the model before any change")
    seed("the samples, and of the training for the measurements")(parser)
    DTYPE(parser)
    parser.add_argument(
        "--match",
        nargs="+",
        type=InputPath,
        help="measurements of others, as much of whose cache an eviction keeps",
    )
    parser.add_argument("--profile", type=InputPath, help="head profile, where heads are replaced in this process")
    parser.add_argument("--scores", type=InputPath, help="scores written by head-scores, for the same choice of heads")


def measure(
    args: Namespace,
    change: Change,
    rows_of: RowsOf,
    repeated: "Repeated | None" = None,
) -> "pd.DataFrame":
    """The rows of a subject, at every setting of its change, with the columns that say what they are of.

    Args:
        args: with the arguments of `measured`.
        change: its settings.
        rows_of: measures (model, configuration of the original, maker of a cache or None for the model's own).
        repeated: random tokens on which an eviction method may judge the heads; see `make_eviction`.

    Raises:
        ValueError: an unknown subject, or a change without the settings that it needs.
    """
    import pandas as pd

    from recurformer.cli.checkpoints import open_config, open_model

    subject = Subject.parse(args.subject)
    model, original = open_model(args.checkpoint, args.dtype), open_config(args.original)
    variants: Iterator[Changed] = iter([(model, None, {})])
    if subject.kind in {"evicted", "combined"}:
        variants = _evicted(args, model, subject, change, repeated)
    elif subject.kind == "replaced":
        variants = _replaced(args, model, subject, change)
    elif subject.kind == "pooled":
        variants = iter([(model, None, {"setting": model.config.num_key_value_heads / original.num_key_value_heads})])
    columns = {"model": args.name, **subject.columns(change.recovered_by)}
    columns["seed"] = subject.choice if subject.by == "random" else args.seed
    columns["fall"] = fall_behind(args.checkpoint) if columns["trained"] else 0.0
    frames = [
        rows_of(changed, original, new_cache).assign(**{**columns, **setting})
        for changed, new_cache, setting in variants
    ]
    return pd.concat(frames, ignore_index=True)


def _evicted(
    args: Namespace, model: "PreTrainedModel", subject: Subject, change: Change, repeated: "Repeated | None"
) -> "Iterator[Changed]":
    from recurformer.evict import empty_cache, evicting, make_eviction

    budgets = [*change.budgets, *map(_held_share, args.match or [])]
    if not budgets:
        raise ValueError(f"--settings change.budgets: {subject} keeps fractions of the cache; name them")
    for budget in budgets:
        eviction = make_eviction(model, subject.name, budget, repeated)
        yield evicting(model), partial(empty_cache, model, eviction), {"setting": budget}


def _held_share(measurements: str) -> float:
    """The mean share of the cache that was held in some measurements.

    Raises:
        ValueError: the file has no such column.
    """
    import pandas as pd

    read = pd.read_parquet if measurements.endswith(".parquet") else pd.read_csv
    try:
        return min(float(read(measurements)["ratio"].mean()), 1.0)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"--match {measurements}: has no column ratio, of the cache that was held") from error


def _replaced(args: Namespace, model: "PreTrainedModel", subject: Subject, change: Change) -> "Iterator[Changed]":
    from recurformer.heads.select import chosen_heads
    from recurformer.model.convert import convert

    if not (change.betas and args.profile):
        raise ValueError(f"--profile and --settings change.betas: {subject} replaces heads here; give both")
    selection = Selection.model_validate({"by": subject.by, "unit": subject.unit})
    for beta in change.betas:
        heads = chosen_heads(args.profile, args.scores, selection, beta, subject.choice)
        yield convert(model, heads, subject.name, **change.window.model_dump()), None, {"setting": beta}


def fall_behind(checkpoint: str) -> float:
    """By how much the loss of the last training of a model may still have fallen, in nats: see `train.trainer`.

    NaN where no run record tells: an earlier training of the same model says nothing about the last one.
    """
    record = record_of(checkpoint)
    runs = map(final_metrics, (run for _, run in ancestors(record)) if record else ())
    return next((run.get("fall", math.nan) for run in runs if "tokens_seen" in run), math.nan)
