"""What was measured, in the columns that all measurements of the ablation study share, and the loop over budgets."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

from recurformer.cli.arguments import InputPath, add_block, read_block
from recurformer.study.block import Block, Share

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedConfig, PreTrainedModel

    from recurformer.evaluate.generate import NewCache

RowsOf = Callable[["PreTrainedModel", "PreTrainedConfig", "NewCache | None"], "pd.DataFrame"]


class Identity(Block):
    """What was measured."""

    name: str
    """Name of the backbone."""
    family: Literal["original", "eviction", "mixer", "layers", "pooled"] = "original"
    """What was changed: nothing, the cache (see --evict), heads, whole layers, the number of KV heads."""
    method: str = "full"
    """How: within the family."""
    setting: Share = 1.0
    """Requested share: of heads or layers replaced, of KV heads kept; 1 for the original."""
    by: str = ""
    """Ranking by which heads or layers were chosen."""
    trained: bool = False
    """Whether the model was trained after the change."""
    seed: int = 0
    """Seed of the training and of the samples."""


def add_arguments(parser: ArgumentParser) -> None:
    """The model, its identity, and the eviction to measure it with."""
    parser.add_argument("checkpoint", type=InputPath, help="folder of the model")
    parser.add_argument(
        "--original", type=InputPath, required=True, help="folder of the model before the change: what a full cache is"
    )
    add_block(parser, Identity)
    parser.add_argument("--evict", help="eviction method: measures the model at every one of --budgets")
    parser.add_argument("--budgets", nargs="+", type=float, help="shares of the cache that --evict keeps")


def measure(args: Namespace, rows_of: RowsOf) -> "pd.DataFrame":
    """The rows of a model, or those at every budget of an eviction method, with the columns that say what they are of.

    Args:
        args: with the arguments of `add_arguments`.
        rows_of: measures (model, configuration of the original, what makes a cache; None for the model's own).

    Raises:
        ValueError: --evict or --budgets without the other, or --evict on a model that was changed.
    """
    import pandas as pd

    from recurformer.cli.checkpoints import open_config, open_model

    identity = read_block(args, Identity)
    if (args.evict is None) != (args.budgets is None):
        raise ValueError("--evict and --budgets: give both or neither")
    if args.evict is not None and identity.family != "original":
        raise ValueError(f"--evict {args.evict}: it is measured on the original, not with --family {identity.family}")
    model, original = open_model(args.checkpoint), open_config(args.original)
    if args.evict is None:
        return _label(rows_of(model, original, None), identity)
    from recurformer.baselines import evicting, make_cache

    frames = []
    with evicting(model):
        for budget in args.budgets:
            rows = rows_of(model, original, partial(make_cache, model, args.evict, budget))
            what = {"family": "eviction", "method": args.evict, "setting": budget}
            frames.append(_label(rows, identity.model_copy(update=what)))
    return pd.concat(frames, ignore_index=True)


def _label(rows: "pd.DataFrame", identity: Identity) -> "pd.DataFrame":
    columns = identity.model_dump()
    return rows.assign(model=columns.pop("name"), **columns)
