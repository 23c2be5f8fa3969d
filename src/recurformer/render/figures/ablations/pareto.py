"""Quality against the cache that is really held, for every method: who is on the front?"""

import matplotlib.patheffects as effects
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recurformer.render.ablations import CONTINUATION, METHODS, after_training, of
from recurformer.render.figures.ablations.panels import Panel, draw_panels, panels_of
from recurformer.render.style import styled


def _chosen(points: pd.DataFrame) -> pd.DataFrame:
    return after_training(pd.concat([of(points, family) for family in METHODS]))


def _name_betas(axes: Axes, panel: Panel) -> None:
    """Each of RecurFormer's points with its β."""
    ours = of(panel.points, "mixer", "mamba")
    below = 6 if panel.measure is CONTINUATION else -11  # on the side where there is room: its line is at the edge
    for ratio, score, beta in zip(ours["ratio"], ours["mean"], ours["setting"], strict=True):
        text = axes.annotate(
            f"β {beta:g}", (ratio, panel.measure.shown(score)), (5, below), textcoords="offset points", fontsize=7,
            zorder=6,
        )  # fmt: skip
        text.set_path_effects([effects.withStroke(linewidth=2, foreground="white")])


@styled
def ablation_pareto(
    ablation_hashhop: pd.DataFrame | None = None,
    needle: pd.DataFrame | None = None,
    continuation: pd.DataFrame | None = None,
) -> Figure:
    """Quality against cache: every method at every setting, one panel a measure and model; RecurFormer's β are named.

    Args:
        ablation_hashhop: identity, variant, sample, correct, hops.
        needle: identity, task, length, depth, sample, correct, queries.
        continuation: identity, window, position, tokens, negative_log_likelihood (nats, summed).

    Raises:
        ValueError: none of them, missing columns, or no rows.
    """
    frames = {"ablation_hashhop": ablation_hashhop, "needle": needle, "continuation": continuation}
    panels = panels_of(frames, _chosen)
    figure = draw_panels(
        panels, "ratio", "cache held (share of the original's)", "Quality against cache",
        "Cache: bytes of the tensors held in the very run over the original's full cache after the same tokens.",
    )  # fmt: skip
    for axes, panel in zip(figure.axes, panels, strict=False):
        if not panel.reason:
            _name_betas(axes, panel)
    return figure
