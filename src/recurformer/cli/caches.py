"""Stages that count or measure caches, peaks of memory, and the longest input that fits."""

from argparse import Namespace
from typing import TYPE_CHECKING

from recurformer.cli.prepare import meta_backbone
from recurformer.cli.stage import BETA, NAME, InputPath, Metric, argument, progress, seed, stage
from recurformer.study import Backbone, Mamba, Search, Selection, Sizes, Speed

if TYPE_CHECKING:
    import pandas as pd

BETAS = argument("--betas", type=BETA, nargs="+", required=True, help="fractions of heads replaced")
LONGEST = [Metric("l_m", "l_m", by=["beta", "protocol"])]


@stage(
    "cache sizes, counted",
    NAME,
    argument("--profile", type=InputPath, help="head profile that ranks the heads (default: a random ranking)"),
    *(BETAS, seed("a random ranking")),
    rows="one row a unit, fraction and length",
    metrics=[Metric("cs", "ratio", by=["unit", "beta", "length"])],
    device="spares",
)
def cache(args: Namespace, settings: Sizes, backbone: Backbone, selection: Selection, mamba: Mamba) -> "pd.DataFrame":
    """Count a shape's cache at every fraction of replaced heads, from the model's cache objects (Tables 2 and 4)."""
    from recurformer.heads.profile import HeadProfile
    from recurformer.measure.cache import measure_cache

    return measure_cache(
        meta_backbone(backbone),
        args.name,
        args.betas,
        lengths=settings.lengths,
        units=settings.units,
        profile=HeadProfile.load(args.profile) if args.profile else None,
        scope=selection.scope,
        by=selection.by,
        seed=args.seed,
        mamba=mamba.model_dump(),
        progress=progress("conversion"),
    )


@stage(
    "cache sizes and peaks of full-size models, measured on a device",
    *(NAME, BETAS, seed("the weights and of the ranking of heads")),
    rows="one row a unit, fraction and length",
    metrics=[
        Metric("cs", "ratio", by=["unit", "beta", "length"]),
        Metric("peak_bytes", "peak_bytes", by=["unit", "beta", "length"]),
    ],
    device="computes",
)
def cache_peak(args: Namespace, settings: Sizes, backbone: Backbone, mamba: Mamba) -> "pd.DataFrame":
    """Measure cache size and peak of a full-size model with random weights on a device (Tables 1, 2 and 4)."""
    from recurformer.cli.checkpoints import device
    from recurformer.measure.prefills import measure_cache_peak

    return measure_cache_peak(
        meta_backbone(backbone).config,
        args.name,
        args.betas,
        settings.lengths,
        device=device().partition(":")[0],
        memory_gib=settings.memory_gib,
        seed=args.seed,
        mamba=mamba.model_dump(),
        progress=progress("model"),
    )


@stage(
    "speed beside the original's, measured on a device",
    NAME,
    seed("the weights and of the ranking of heads"),
    rows="one row a phase, fraction and length",
    metrics=[Metric("ratio", "ratio", by=["topic", "beta", "tokens"])],
    device="computes",
)
def speed(args: Namespace, settings: Speed, backbone: Backbone, mamba: Mamba) -> "pd.DataFrame":
    """Time prefill and decoding of a model with random weights, converted and not (the figure `speed`)."""
    from recurformer.cli.checkpoints import device
    from recurformer.measure.speed import measure_speed

    return measure_speed(
        meta_backbone(backbone).config,
        args.name,
        settings.betas,
        settings.lengths,
        decoded=settings.decoded,
        rounds=settings.rounds,
        device=device().partition(":")[0],
        seed=args.seed,
        mamba=mamba.model_dump(),
        progress=progress("round"),
    )


@stage(
    "the longest input by a memory model",
    *(NAME, BETAS, seed("a random ranking")),
    rows="one row a fraction and protocol",
    metrics=LONGEST,
    device="spares",
)
def memory(args: Namespace, settings: Sizes, backbone: Backbone, mamba: Mamba) -> "pd.DataFrame":
    """The longest input that fits on a GPU, by a memory model: weights, cache and activations (Tables 2 and 4)."""
    from recurformer.measure.memory import measure_memory

    return measure_memory(
        meta_backbone(backbone),
        args.name,
        args.betas,
        memory_gib=settings.memory_gib,
        chunk=settings.chunk,
        seed=args.seed,
        mamba=mamba.model_dump(),
        progress=progress("model"),
    )


@stage(
    "the longest input, measured on a GPU",
    NAME,
    argument("--beta", type=BETA, required=True, help="fraction of heads replaced"),
    argument("--protocol", required=True, help="one_shot, as in the paper, chunked, or pyramidinfer in one pass"),
    seed("weights and of a random ranking"),
    rows="one row a fraction and protocol",
    metrics=LONGEST,
    device="computes",
)
def longest_input(args: Namespace, settings: Sizes, search: Search, backbone: Backbone, mamba: Mamba) -> "pd.DataFrame":
    """Measure the longest input that fits on a device, with random weights: l_m of Tables 2 and 4.

    The memory of the GPU, or of this process on a CPU, is limited to the given size.
    """
    import torch

    from recurformer.cli.checkpoints import device
    from recurformer.measure.prefills import measure_longest

    return measure_longest(
        meta_backbone(backbone),
        args.name,
        args.beta,
        args.protocol,
        torch.device(device()),
        memory_gib=settings.memory_gib,
        chunk=settings.chunk,
        **search.model_dump(),
        seed=args.seed,
        mamba=mamba.model_dump(),
    )


@stage(
    "the cache sizes of the PyramidInfer baseline",
    rows="one row a length",
    metrics=[Metric("cs", "ratio", by=["length"])],
    device="spares",
)
def pyramidinfer(args: Namespace, settings: Sizes) -> "pd.DataFrame":
    """The cache sizes of the PyramidInfer baseline as the paper configured it, for Llama2-7B (Table 2; appendix B)."""
    from recurformer.evict.pyramidinfer import pyramidinfer_rows

    return pyramidinfer_rows(settings.lengths)


@stage(
    "growth of cache peak and cache size",
    rows="one row a mixer, phase, quantity and length",
    metrics=[Metric("bytes", "bytes", by=["mixer", "phase", "quantity", "length"])],
    device="spares",
)
def complexity(args: Namespace, settings: Sizes, mamba: Mamba) -> "pd.DataFrame":
    """Growth of cache peak and cache size of attention and Mamba with the length (Table 1)."""
    from recurformer.measure.growth import measure_complexity

    return measure_complexity(settings.growth_lengths, mamba=mamba.model_dump())
