"""What replaces the heads: Mamba and its rivals on the same heads."""

import pandas as pd
from matplotlib.figure import Figure

from recurformer.render.ablations import of
from recurformer.render.figures.ablations.panels import draw_panels, panels_of
from recurformer.render.style import styled


def _chosen(points: pd.DataFrame) -> pd.DataFrame:
    """The original stands at β = 0."""
    return pd.concat([of(points, "original").assign(setting=0.0), of(points, "mixer")])


@styled
def ablation_mixers(
    ablation_hashhop: pd.DataFrame | None = None,
    needle: pd.DataFrame | None = None,
    continuation: pd.DataFrame | None = None,
) -> Figure:
    """Quality by the share of heads that each mixer replaces, trained and not; one panel a measure and model.

    Args:
        ablation_hashhop: identity, variant, sample, correct, hops.
        needle: identity, task, length, depth, sample, correct, queries.
        continuation: identity, window, position, tokens, negative_log_likelihood (nats, summed).

    Raises:
        ValueError: none of them, missing columns, or no rows.
    """
    frames = {"ablation_hashhop": ablation_hashhop, "needle": needle, "continuation": continuation}
    return draw_panels(
        panels_of(frames, _chosen), "setting", "heads replaced, β", "Mixers on the same heads",
        "At each β the same heads, those of the highest RA-I.",
    )  # fmt: skip
