"""RecurFormer's points by their β, on panels of quality against the cache."""

from typing import Any

import matplotlib.patheffects as effects
from matplotlib.axes import Axes
from matplotlib.ticker import AutoLocator, ScalarFormatter

from recurformer.render.ablations import CONTINUATION, of
from recurformer.render.figures.ablations.looks import OURS
from recurformer.render.figures.ablations.panels import Panel

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


def name_betas(axes: Axes, panel: Panel) -> None:
    """Each of RecurFormer's points with its β; one that is far off with an arrow and its value."""
    top = _show_what_can_be_told_apart(axes, panel) if panel.measure is CONTINUATION else float("inf")
    ours = of(panel.points, "mixer", "mamba")
    below = 6 if panel.measure is CONTINUATION else -11  # on the side where there is room: its line is at the edge
    for ratio, score, beta in zip(ours["ratio"], ours["mean"].map(panel.measure.shown), ours["setting"], strict=True):
        place: dict[str, Any] = {
            "xy": (ratio, score),
            "xytext": (5, below if score > LOW else 6),
            "text": f"β {beta:g}",
        }
        if score > top:
            arrow = {"arrowstyle": "->", "color": OURS}
            place = {"xy": (ratio, top), "xytext": (0, -24), "text": f"β {beta:g}: {score:,.0f}", "ha": "center",
                     "arrowprops": arrow}  # fmt: skip
        text = axes.annotate(**place, textcoords="offset points", fontsize=7, zorder=6)
        text.set_path_effects([effects.withStroke(linewidth=2, foreground="white")])
