"""Quality against the cache that is held, and by the share of heads replaced: three figures of the same panels."""

from typing import Any

import matplotlib.patheffects as effects
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import AutoLocator, ScalarFormatter

from recurformer.render.figures.ablations.looks import OURS
from recurformer.render.figures.ablations.panels import Panel, quality_figure
from recurformer.results.scores import CONTINUATION, after_training, as_paper_does, of

CONTROLS = ("mean", "zero")
"""Mixers that nobody would use; untrained they reach perplexities beside which all others look alike."""
FRONT: dict[str, Any] = {"color": "0.8", "linewidth": 5, "drawstyle": "steps-post", "zorder": 1}
FAR = 2.0
"""Perplexities of more than so many times the best are not drawn, but told."""
LOW = 0.1
"""A share below which there is no room for text under a point."""


def _show_what_can_be_told_apart(axes: Axes, panel: Panel) -> float:
    """Perplexities far above the original's leave the panel; its upper end."""
    best = panel.measure.shown(panel.points["mean"].max())
    near = panel.points[["mean", "low"]].map(panel.measure.shown)
    near = near[near["mean"] <= FAR * best]
    axes.set_yscale("linear")
    axes.yaxis.set_major_locator(AutoLocator())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    lowest, highest = panel.points["high"].map(panel.measure.shown).min(), near["low"].max()
    margin = (highest - lowest) / 10
    axes.set_ylim(lowest - margin, highest + 2 * margin)
    return highest + 2 * margin


def _name_betas(axes: Axes, panel: Panel) -> None:
    """Each of RecurFormer's points with its β; one that is far off with an arrow and its value."""
    top = _show_what_can_be_told_apart(axes, panel) if panel.measure is CONTINUATION else float("inf")
    ours = of(panel.points, "mixer", "mamba")
    below = 6 if panel.measure is CONTINUATION else -11  # on the side where there is room: its line is at the edge
    for ratio, score, beta in zip(ours["ratio"], ours["mean"].map(panel.measure.shown), ours["setting"], strict=True):
        name, offset, far = f"β {beta:g}", (5, below if score > LOW else 6), score > top
        if far:
            name, offset = f"{name}: {score:,.0f}", (0, -24)
        arrow: dict[str, Any] = {"ha": "center", "arrowprops": {"arrowstyle": "->", "color": OURS}} if far else {}
        text = axes.annotate(
            name, (ratio, min(score, top)), offset, textcoords="offset points", fontsize=7, zorder=6, **arrow
        )
        text.set_path_effects([effects.withStroke(linewidth=2, foreground="white")])


def front(points: pd.DataFrame) -> pd.DataFrame:
    """The points that no other dominates: none holds as little cache and scores as much, by rising cache."""
    ordered = points.sort_values(["ratio", "mean"], ascending=[True, False])
    return ordered[ordered["mean"] > ordered["mean"].cummax().shift(fill_value=float("-inf"))]


def _name_betas_and_front(axes: Axes, panel: Panel) -> None:
    _name_betas(axes, panel)
    found = front(panel.points)
    shown = found["mean"].map(panel.measure.shown)
    axes.plot([*found["ratio"], 1.0], [*shown, shown.iloc[-1]], **FRONT)


def _everything(points: pd.DataFrame) -> pd.DataFrame:
    shown = as_paper_does(points)
    return shown[~((shown["family"] == "mixer") & shown["method"].isin(CONTROLS))]


ablation_pareto = quality_figure(
    _everything,
    "ratio",
    "cache held (share of the original's)",
    "Quality against cache",
    "Cache: bytes of the tensors held after the prompt over the original's full cache after the same tokens; SnapKV, "
    "CItruS and PyramidInfer (paper) keep all that follows it. The controls among the mixers are left out.",
    _name_betas_and_front,
    (Line2D([], [], label="Pareto front", **FRONT),),
)


def _heads_and_layers(points: pd.DataFrame) -> pd.DataFrame:
    """Heads replaced by Mamba, and by whatever replaces layers; the original as it came and trained likewise."""
    layers = of(points, "layers")
    heads = of(points, "mixer", "mamba", *layers["method"].unique())
    return pd.concat([of(points, "original"), after_training(pd.concat([heads, layers, of(points, "pooled")]))])


ablation_granularity = quality_figure(
    _heads_and_layers,
    "ratio",
    "cache held (share of the original's)",
    "Heads against layers",
    "Points of a line, right to left: rising β, or rising share of removed KV heads.",
    _name_betas,
)


def _mixers(points: pd.DataFrame) -> pd.DataFrame:
    """The original stands at β = 0."""
    return pd.concat([of(points, "original").assign(setting=0.0), of(points, "mixer")])


ablation_mixers = quality_figure(
    _mixers,
    "setting",
    "heads replaced, β",
    "Mixers on the same heads",
    "At each β all replace the same heads: those with the highest RA-I.",
)
