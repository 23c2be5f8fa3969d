"""Stages that count or measure caches, peaks of memory, and the longest input that fits."""

from argparse import Namespace
from typing import TYPE_CHECKING, Annotated

from recurformer.cli.arguments import BETA, COUNT, InputPath
from recurformer.cli.metrics import Metric
from recurformer.cli.prepare import meta_backbone
from recurformer.cli.stage import NAME, argument, csv, progress, seed, stage
from recurformer.study import Backbone, Mamba, Search, Selection, Sizes

if TYPE_CHECKING:
    import pandas as pd

Shape = Annotated[Backbone, "backbone-"]
Mixer = Annotated[Mamba, "mamba-"]
BETAS = argument("--betas", type=BETA, nargs="+", required=True, help="shares of heads replaced")
MEMORY = csv("memory")
LONGEST = [Metric("l_m", "l_m", by=["beta", "protocol"])]


@stage(
    "cache sizes, counted",
    NAME,
    argument(
        "--profile",
        type=InputPath,
        nargs="*",
        default=[],
        help="head profile that ranks the heads (default: a random ranking)",
    ),
    *(BETAS, seed("a random ranking")),
    output=csv("cache"),
    metrics=[Metric("cs", "ratio", by=["unit", "beta", "length"])],
    device="counts",
)
def cache(
    args: Namespace, sizes: Sizes, backbone: Shape, selection: Annotated[Selection, "selection-"], mamba: Mixer
) -> "pd.DataFrame":
    """Count a shape's cache at every share of replaced heads, from the model's own cache objects (Tables 2 and 4)."""
    from recurformer.heads.profile import HeadProfile
    from recurformer.measure.cache import measure_cache

    return measure_cache(
        meta_backbone(backbone),
        args.name,
        args.betas,
        lengths=sizes.lengths,
        units=sizes.units,
        profile=HeadProfile.load(args.profile[0]) if args.profile else None,
        scope=selection.scope,
        by=selection.by,
        seed=args.seed,
        mamba=mamba.model_dump(),
        progress=progress("conversion"),
    )


@stage(
    "cache sizes and peaks of full-size models, measured on a device",
    *(NAME, BETAS, seed("the weights and of the ranking of heads")),
    argument("--device", choices=["cuda", "cpu"], default="cuda", help="default: %(default)s"),
    output=csv("cache_peak"),
    metrics=[
        Metric("cs", "ratio", by=["unit", "beta", "length"]),
        Metric("peak_bytes", "peak_bytes", by=["unit", "beta", "length"]),
    ],
    device="computes",
)
def cache_peak(args: Namespace, sizes: Sizes, backbone: Shape, mamba: Mixer) -> "pd.DataFrame":
    """Measure cache size and peak of a full-size model with random weights on a device (Tables 1, 2 and 4)."""
    import torch

    from recurformer.measure.memory import measure_cache_peak

    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here")
    return measure_cache_peak(
        meta_backbone(backbone).config,
        args.name,
        args.betas,
        sizes.lengths,
        device=args.device,
        memory_gib=sizes.memory_gib,
        seed=args.seed,
        mamba=mamba.model_dump(),
        progress=progress("model"),
    )


@stage(
    "the longest input by a memory model",
    *(NAME, BETAS, seed("a random ranking")),
    output=MEMORY,
    metrics=LONGEST,
    device="counts",
)
def memory(args: Namespace, sizes: Sizes, backbone: Shape, mamba: Mixer) -> "pd.DataFrame":
    """The longest input that fits on a card, by a memory model: weights, cache and activations (Tables 2 and 4)."""
    from recurformer.measure.memory import measure_memory

    return measure_memory(
        meta_backbone(backbone),
        args.name,
        args.betas,
        memory_gib=sizes.memory_gib,
        chunk=sizes.chunk,
        seed=args.seed,
        mamba=mamba.model_dump(),
        progress=progress("model"),
    )


@stage(
    "the longest input, measured on a card",
    NAME,
    argument("--beta", type=BETA, required=True, help="share of heads replaced"),
    argument("--protocol", required=True, help="one_shot, as in the paper, or chunked"),
    seed("weights and of a random ranking"),
    output=MEMORY,
    metrics=LONGEST,
    device="computes",
)
def longest_input(
    args: Namespace, sizes: Sizes, search: Annotated[Search, "search-"], backbone: Shape, mamba: Mixer
) -> "pd.DataFrame":
    """Measure the longest input that fits on a device, with random weights: l_m of Tables 2 and 4.

    The memory of the card, or of this process on a CPU, is limited to the given size.
    """
    import torch

    from recurformer.cli.checkpoints import device
    from recurformer.measure.longest import measure_longest

    return measure_longest(
        meta_backbone(backbone),
        args.name,
        args.beta,
        args.protocol,
        torch.device(device()),
        memory_gib=sizes.memory_gib,
        chunk=sizes.chunk,
        tolerance=search.tolerance,
        maximum=search.maximum,
        prefill_minutes=search.prefill_minutes,
        seed=args.seed,
        mamba=mamba.model_dump(),
    )


@stage(
    "the cache sizes of the PyramidInfer baseline",
    argument("--name", default="llama2-7b", help="backbone, for the number of layers; the paper's is Llama2-7B"),
    argument("--layers", type=COUNT, default=32, help="its layers"),
    output=csv("pyramidinfer"),
    metrics=[Metric("cs", "ratio", by=["length"])],
    device="counts",
)
def pyramidinfer(args: Namespace, sizes: Sizes) -> "pd.DataFrame":
    """The cache sizes of the PyramidInfer baseline as the paper configured it (Table 2; appendix B)."""
    from recurformer.evict.pyramidinfer import pyramidinfer_rows

    return pyramidinfer_rows(sizes.lengths, args.name, args.layers)


@stage(
    "growth of cache peak and cache size",
    output=csv("complexity"),
    metrics=[Metric("bytes", "bytes", by=["mixer", "phase", "quantity", "length"])],
    device="counts",
)
def complexity(args: Namespace, sizes: Sizes, mamba: Mixer) -> "pd.DataFrame":
    """Growth of cache peak and cache size of attention and Mamba with the length (Table 1)."""
    from recurformer.measure.growth import measure_complexity

    return measure_complexity(sizes.growth_lengths, mamba=mamba.model_dump())
