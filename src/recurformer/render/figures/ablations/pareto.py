"""Quality against the cache that is really held, for every method: who is on the front?"""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from recurformer.render.ablations import METHODS, after_training, of
from recurformer.render.figures.ablations.betas import name_betas
from recurformer.render.figures.ablations.panels import Panel, quality_figure

CONTROLS = ("mean", "zero")
"""Mixers that nobody would use; untrained they reach perplexities beside which all others look alike."""

FRONT: dict[str, Any] = {"color": "0.8", "linewidth": 5, "drawstyle": "steps-post", "zorder": 1}


def _chosen(points: pd.DataFrame) -> pd.DataFrame:
    """The original as it came and trained likewise, everything else trained where it was trained."""
    changed = after_training(pd.concat([of(points, family) for family in METHODS if family != "original"]))
    shown = pd.concat([of(points, "original"), changed])
    return shown[~((shown["family"] == "mixer") & shown["method"].isin(CONTROLS))]


def front(points: pd.DataFrame) -> pd.DataFrame:
    """The points that no other dominates: none holds as little cache and scores as much, by rising cache."""
    ordered = points.sort_values(["ratio", "mean"], ascending=[True, False])
    return ordered[ordered["mean"] > ordered["mean"].cummax().shift(fill_value=float("-inf"))]


def _draw_front(axes: Axes, panel: Panel) -> None:
    found = front(panel.points)
    axes.plot([*found["ratio"], 1.0], [*(shown := found["mean"].map(panel.measure.shown)), shown.iloc[-1]], **FRONT)


def _finish(axes: Axes, panel: Panel) -> None:
    name_betas(axes, panel)
    _draw_front(axes, panel)


ablation_pareto = quality_figure(
    _chosen,
    "ratio",
    "cache held (share of the original's)",
    "Quality against cache",
    "Cache: bytes of the tensors held behind the prompt over the original's full cache after the same tokens; SnapKV, "
    "CItruS and PyramidInfer (paper) keep all that follows it. Without the controls among the mixers.",
    _finish,
    (Line2D([], [], label="Pareto front", **FRONT),),
)
