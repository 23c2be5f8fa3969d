"""What is replaced: heads, whole layers, or the KV heads' number."""

import pandas as pd
from matplotlib.figure import Figure

from recurformer.render.ablations import after_training, of
from recurformer.render.figures.ablations.panels import draw_panels, panels_of
from recurformer.render.style import styled


def _chosen(points: pd.DataFrame) -> pd.DataFrame:
    families = [of(points, "mixer", "mamba"), of(points, "layers"), of(points, "pooled")]
    return after_training(pd.concat([of(points, "original"), *families]))


@styled
def ablation_granularity(
    ablation_hashhop: pd.DataFrame | None = None,
    needle: pd.DataFrame | None = None,
    continuation: pd.DataFrame | None = None,
) -> Figure:
    """Heads against whole layers against pooled KV heads, by the cache that each holds; one panel a measure and model.

    Args:
        ablation_hashhop: identity, variant, sample, correct, hops.
        needle: identity, task, length, depth, sample, correct, queries.
        continuation: identity, window, position, tokens, negative_log_likelihood (nats, summed).

    Raises:
        ValueError: none of them, missing columns, or no rows.
    """
    frames = {"ablation_hashhop": ablation_hashhop, "needle": needle, "continuation": continuation}
    return draw_panels(
        panels_of(frames, _chosen), "ratio", "cache held (share of the original's)", "Heads against layers",
        "Points of a line, right to left: β or the share of KV heads removed rising.",
    )  # fmt: skip
