"""Heads against whole layers against fewer KV heads, by the cache that each holds."""

import pandas as pd

from recurformer.render.ablations import after_training, of
from recurformer.render.figures.ablations.betas import name_betas
from recurformer.render.figures.ablations.panels import quality_figure


def _chosen(points: pd.DataFrame) -> pd.DataFrame:
    """Heads replaced by Mamba, and by whatever replaces layers; the original as it came and trained likewise."""
    layers = of(points, "layers")
    heads = of(points, "mixer", "mamba", *layers["method"].unique())
    return pd.concat([of(points, "original"), after_training(pd.concat([heads, layers, of(points, "pooled")]))])


ablation_granularity = quality_figure(
    _chosen,
    "ratio",
    "cache held (share of the original's)",
    "Heads against layers",
    "Points of a line, right to left: β or the share of KV heads removed rising.",
    name_betas,
)
