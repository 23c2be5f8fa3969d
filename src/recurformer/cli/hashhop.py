"""Stages that measure generation quality on HashHop: how much of a chain is reproduced before the first error."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from recurformer.cli.metrics import Metric
from recurformer.cli.stage import parquet, progress, stage
from recurformer.cli.subjects import measure, measured
from recurformer.study import Change, HashHopEvaluation, HashHopTask, HeadScores
from recurformer.study.ablations import HashHopSizes

if TYPE_CHECKING:
    import pandas as pd


@stage(
    "generation quality h_gq on HashHop, with a full or a smaller cache",
    measured,
    output=parquet("hashhop", "one row a sample"),
    metrics=[Metric("h_gq", "correct", over="hops", by=by) for by in (["variant"], ["method", "setting", "variant"])],
    device="computes",
)
def hashhop(args: Namespace, settings: HashHopEvaluation, task: HashHopTask, change: Change) -> "pd.DataFrame":
    """Generation quality on HashHop, the fraction of a chain before the model's first error, with a full or a smaller
    cache, whose bytes are measured (Tables 2, 4).
    """
    from recurformer.cli.checkpoints import open_tokenizer
    from recurformer.heads.probes import HashHopProbes
    from recurformer.measure.hashhop import hashhop_rows

    tokenizer = open_tokenizer(args.checkpoint)
    options: dict[str, Any] = {**settings.model_dump(), "seed": args.seed, "progress": progress("sample")}
    knows_hashes_only = task.form == "tokens"
    return measure(
        args,
        change,
        lambda model, original, new_cache: hashhop_rows(
            model, tokenizer, task, **options, new_cache=new_cache, original=original
        ),
        repeated=HashHopProbes(tokenizer, task, HeadScores(), args.seed).repeats() if knows_hashes_only else None,
    )


@stage(
    "generation quality h_gq on HashHop at other lengths and hops",
    measured,
    output=parquet("hashhop_sizes", "one row a sample"),
    metrics=[Metric("h_gq", "correct", over="hops", by=["setting", "hops", "size", "variant"])],
    device="computes",
)
def hashhop_sizes(args: Namespace, settings: HashHopSizes, task: HashHopTask, change: Change) -> "pd.DataFrame":
    """Generation quality on HashHop at lengths and hops other than those of the training."""
    import pandas as pd

    from recurformer.cli.checkpoints import open_tokenizer
    from recurformer.measure.hashhop import hashhop_rows

    tokenizer = open_tokenizer(args.checkpoint)
    options: dict[str, Any] = {"samples": settings.samples, "batch_size": settings.batch_size, "seed": args.seed}
    sizes = [(size, task.resized(hops, size)) for hops, size in settings.sizes]
    return measure(
        args,
        change,
        lambda model, original, new_cache: pd.concat(
            hashhop_rows(
                model, tokenizer, sized, **options, new_cache=new_cache, original=original, progress=progress("sample")
            ).assign(size=size, form=task.form, as_trained=sized == task)
            for size, sized in sizes
        ),
    )
