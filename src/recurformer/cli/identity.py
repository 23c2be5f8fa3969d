"""The identity of a measurement: the columns that all measurements of the ablation study share.

A change that needs no training (eviction, untrained mixers) is made in the process that measures it, at every setting.
"""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from recurformer.cli.arguments import BETA, BUDGET, SEED, InputPath, add_block, read_block
from recurformer.cli.stage import DTYPE, checkpoint
from recurformer.records import ancestors, final_metrics, record_of
from recurformer.study import Selection, Window
from recurformer.study.block import Block, Share

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedConfig, PreTrainedModel

    from recurformer.evaluate.generate import NewCache
    from recurformer.heads.probes import Repeated

    Changed = tuple[PreTrainedModel, NewCache | None, dict[str, Any]]

RowsOf = Callable[["PreTrainedModel", "PreTrainedConfig", "NewCache | None"], "pd.DataFrame"]


class Identity(Block):
    """The measured model."""

    name: str
    """Name of the backbone."""
    family: Literal["original", "eviction", "combined", "mixer", "layers", "pooled", "recovered"] = "original"
    """What was changed: nothing, the cache (see --evict), that of a converted model, heads, whole layers, the number of
    KV heads, or heads by a recipe of `language.recovery` (recovered)."""
    method: str = "full"
    """How, within the family: the mixer, the eviction method, or the recipe."""
    setting: Share = 1.0
    """Requested share of heads or layers replaced. Of the original it is 1, of a pooled model the share of KV heads."""
    by: str = ""
    """Ranking by which heads or layers were chosen."""
    trained: bool = False
    """Whether the model was trained after the change."""
    seed: int = 0
    """Seed of the training and of the samples; the rows of a random choice of heads bear that choice's instead."""


def identified(parser: ArgumentParser) -> None:
    """The model, and changes of it that need no training."""
    checkpoint()(parser)
    parser.add_argument(
        "--original",
        type=InputPath,
        required=True,
        help="folder of the model before the change; its cache is the full one",
    )
    DTYPE(parser)
    parser.add_argument("--evict", help="eviction method: measures the model at each of --budgets")
    parser.add_argument("--budgets", nargs="+", type=BUDGET, help="shares of the cache that --evict keeps")
    parser.add_argument(
        "--match",
        nargs="+",
        type=InputPath,
        help="measurements of other methods: --evict also keeps as much cache as they held",
    )
    parser.add_argument("--replace", help="mixer: measures the model with replaced heads, at each of --betas")
    parser.add_argument("--betas", nargs="+", type=BETA, help="shares of heads for --replace")
    parser.add_argument("--profile", type=InputPath, help="head profile for the choice of --replace")
    parser.add_argument("--scores", type=InputPath, help="scores written by head-scores, for the same choice")
    parser.add_argument("--choice", type=SEED, default=0, help="seed of a random ranking")
    add_block(parser, Selection, "selection-")
    add_block(parser, Window)


def measure(args: Namespace, identity: Identity, rows_of: RowsOf, repeated: "Repeated | None" = None) -> "pd.DataFrame":
    """The rows of a model, or those at every setting of a change, with the columns that identify them.

    Args:
        args: with the arguments of `identified`.
        identity: of the model, before any change.
        rows_of: measures (model, configuration of the original, maker of a cache or None for the model's own).
        repeated: random tokens on which an eviction method may judge the heads; see `make_eviction`.

    Raises:
        ValueError: a change without its settings or settings without their change, two changes, or one in a model that
            was changed already.
    """
    import pandas as pd

    from recurformer.cli.checkpoints import open_config, open_model

    if args.match and not args.evict:
        raise ValueError("--match: only --evict keeps as much as others held; give both or neither")
    changes = [change for change in CHANGES if _requested(args, *change)]
    if changes and (identity.family != "original" or len(changes) > 1):
        flag, family = changes[0][0], identity.family
        raise ValueError(f"--{flag}: one change of the original is measured at a time, not with --family {family}")
    model, original = open_model(args.checkpoint, args.dtype), open_config(args.original)
    if not changes:
        if identity.family == "pooled":
            share = model.config.num_key_value_heads / original.num_key_value_heads
            identity = identity.model_copy(update={"setting": share})
        if identity.by == "random":
            identity = identity.model_copy(update={"seed": args.choice})
        return _label(rows_of(model, original, None), identity, fall_behind(args.checkpoint))
    settings = _evicted(args, model, repeated) if args.evict else _replaced(args, model)
    frames = [
        _label(rows_of(changed, original, new_cache), identity.model_copy(update=columns), fall_behind(args.checkpoint))
        for changed, new_cache, columns in settings
    ]
    return pd.concat(frames, ignore_index=True)


def _requested(args: Namespace, change: str, settings: str) -> bool:
    present = [getattr(args, name) is not None for name in (change, settings)]
    if any(present) != all(present):
        raise ValueError(f"--{change} and --{settings}: give both or neither")
    return all(present)


def _evicted(args: Namespace, model: "PreTrainedModel", repeated: "Repeated | None") -> "Iterator[Changed]":
    from recurformer.baselines import empty_cache, evicting, make_eviction

    family = "combined" if any(getattr(model.config, "recurrent_heads", [])) else "eviction"
    for budget in [*args.budgets, *map(_held_share, args.match or [])]:
        eviction = make_eviction(model, args.evict, budget, repeated)
        columns = {"family": family, "method": args.evict, "setting": budget}
        yield evicting(model), partial(empty_cache, model, eviction), columns


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


def _replaced(args: Namespace, model: "PreTrainedModel") -> "Iterator[Changed]":
    from recurformer.heads.select import chosen_heads
    from recurformer.model.convert import convert

    selection = read_block(args, Selection, "selection-")
    window = read_block(args, Window).model_dump()
    family = "layers" if selection.unit == "layer" else "mixer"
    columns = {"family": family, "method": args.replace, "by": selection.by}
    if selection.by == "random":
        columns["seed"] = args.choice
    for beta in args.betas:
        heads = chosen_heads(args.profile, args.scores, selection, beta, args.choice)
        yield convert(model, heads, args.replace, **window), None, {**columns, "setting": beta}


def _label(rows: "pd.DataFrame", identity: Identity, fall: float) -> "pd.DataFrame":
    columns = identity.model_dump()
    return rows.assign(model=columns.pop("name"), **columns, fall=fall if identity.trained else 0.0)


def fall_behind(checkpoint: str) -> float:
    """By how much the loss of the last training of a model may still have fallen, in nats: see `train.trainer`.

    NaN where no run record tells: an earlier training of the same model says nothing about the last one.
    """
    record = record_of(checkpoint)
    runs = map(final_metrics, (run for _, run in ancestors(record)) if record else ())
    return next((run.get("fall", math.nan) for run in runs if "tokens_seen" in run), math.nan)


CHANGES = (("evict", "budgets"), ("replace", "betas"))
"""Flag of a change, flag of its settings."""
