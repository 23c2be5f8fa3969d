"""Quality against the cache that is really held, for every method: who is on the front?"""

import matplotlib.patheffects as effects
import pandas as pd
from matplotlib.axes import Axes

from recurformer.render.ablations import CONTINUATION, METHODS, after_training, of
from recurformer.render.figures.ablations.panels import Panel, quality_figure

CONTROLS = ("mean", "zero")
"""Mixers that nobody would use; untrained they reach perplexities beside which all others look alike."""


def _chosen(points: pd.DataFrame) -> pd.DataFrame:
    shown = after_training(pd.concat([of(points, family) for family in METHODS]))
    return shown[~((shown["family"] == "mixer") & shown["method"].isin(CONTROLS))]


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


ablation_pareto = quality_figure(
    _chosen,
    "ratio",
    "cache held (share of the original's)",
    "Quality against cache",
    "Cache: bytes of the tensors held in the very run over the original's full cache after the same tokens. "
    "Without the controls among the mixers.",
    _name_betas,
)
