"""Stages that average attention and its effects over windows of text."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from recurformer.cli.arguments import InputPath
from recurformer.cli.metrics import Metric
from recurformer.cli.stage import ARTICLES, DTYPE, NAME, argument, checkpoint, csv, parquet, progress, seed, stage
from recurformer.study import Maps, SinkHead

if TYPE_CHECKING:
    import pandas as pd


def mapped(parser: ArgumentParser) -> None:
    """The arguments that all of these stages take."""
    for add in (checkpoint("folder of the model before conversion"), ARTICLES, NAME, seed("the choice of windows")):
        add(parser)


@stage("value norms, attention and contributions of a sink head", mapped, output=parquet("sink"), device="computes")
def sink(args: Namespace, settings: Maps, shown: SinkHead) -> "pd.DataFrame":
    """Value norms, attention and contributions of one head, named or the one with the strongest sink (Figure 2)."""
    from recurformer.cli.checkpoints import open_model
    from recurformer.cli.texts import text_windows
    from recurformer.measure.maps import sink_statistics

    input_ids = text_windows(args, settings.shown_tokens, settings.samples, seed=args.seed)
    model = open_model(args.checkpoint)
    return sink_statistics(model, input_ids, args.name, shown.layer, shown.head, progress=progress("window"))


@stage(
    "contributions of the first token and of the others",
    mapped,
    output=csv("contribution"),
    metrics=[Metric("contribution", "mean", by=["norm", "tokens"])],
    device="computes",
)
def contribution(args: Namespace, settings: Maps) -> "pd.DataFrame":
    """Contribution of the first token to attention's output, compared with the other tokens (Table 5)."""
    from recurformer.cli.checkpoints import open_model
    from recurformer.cli.texts import text_windows
    from recurformer.measure.maps import contribution_table, token_contributions

    input_ids = text_windows(args, settings.tokens, settings.samples, seed=args.seed)
    contributions = token_contributions(open_model(args.checkpoint), input_ids, progress=progress("window"))
    return contribution_table(contributions, args.name)


@stage(
    "averaged attention maps",
    mapped,
    argument("--profile", type=InputPath, required=True, help="head profile of the model"),
    output=parquet("attention_map"),
    device="computes",
)
def attention_map(args: Namespace, settings: Maps) -> "pd.DataFrame":
    """Attention of a high, a middle and a low RA-I head, averaged over windows (Figure 5)."""
    from recurformer.cli.checkpoints import open_model
    from recurformer.cli.texts import text_windows
    from recurformer.heads.profile import HeadProfile
    from recurformer.measure.maps import attention_maps

    input_ids = text_windows(args, settings.tokens, settings.samples, seed=args.seed)
    profile = HeadProfile.load(args.profile)
    return attention_maps(open_model(args.checkpoint), input_ids, profile, args.name, progress=progress("window"))


@stage(
    "weights that attention and Mamba give to earlier tokens",
    *(mapped, DTYPE),
    argument("--trained", type=InputPath, required=True, help="folder of the converted and trained model"),
    argument("--profile", type=InputPath, required=True, help="head profile of the model before conversion"),
    output=parquet("influence"),
    device="computes",
)
def influence(args: Namespace, settings: Maps) -> "pd.DataFrame":
    """Weights that a recency-aware head, and the Mamba block that replaces it, give to earlier tokens (Figure 1)."""
    from recurformer.cli.checkpoints import open_model
    from recurformer.cli.texts import text_windows
    from recurformer.heads.profile import HeadProfile
    from recurformer.measure.influence import measure_influence

    return measure_influence(
        open_model(args.checkpoint, args.dtype),
        open_model(args.trained, args.dtype),
        text_windows(args, settings.shown_tokens, settings.samples, seed=args.seed),
        HeadProfile.load(args.profile),
        args.name,
    )
