"""Where the heads lie that a selector puts first: one map of layers by heads a selector, RA-I's choice marked."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from recurformer.paper import label
from recurformer.render.ablations import PAPERS_SELECTOR
from recurformer.render.figures.ablations.selectors import look_of, selectors_in_order
from recurformer.render.measurements import by_model, require, require_values
from recurformer.render.selection import SHARE
from recurformer.render.style import WIDTH, add_note, styled

COLUMNS = 4


def rank_map(scores: pd.DataFrame) -> pd.DataFrame:
    """Layers by heads: the share of the other heads that a selector puts later, 1 for the head that goes first.

    Args:
        scores: layer, head, score of one selector and seed; equal scores share the mean of their ranks.
    """
    later = (scores["score"].rank() - 1) / max(len(scores) - 1, 1)
    return scores.assign(later=later).pivot(index="layer", columns="head", values="later")


def _draw(axes: Axes, later: pd.DataFrame, ours: pd.DataFrame) -> AxesImage:
    axes.grid(False)
    image = axes.imshow(later.to_numpy(), vmin=0, vmax=1, cmap="cividis", aspect="auto", origin="lower")
    layers, heads = np.nonzero(ours.to_numpy() >= np.quantile(ours, 1 - SHARE))
    axes.plot(heads, layers, linestyle="none", marker="o", markersize=2.6, markerfacecolor="white",
        markeredgecolor="black", markeredgewidth=0.6)  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True))
    return image


@styled
def ablation_head_maps(head_scores: pd.DataFrame) -> Figure:
    """The rank of every head, one panel a selector; dots: the heads that RA-I replaces first.

    Raises:
        ValueError: a model without RA-I.
    """
    rows = require(head_scores, "head_scores")
    first = rows["seed"] == rows.groupby(["model", "by"])["seed"].transform("min")
    rows, several = rows[first], not first.all()
    models = by_model(rows)
    lines = [math.ceil(of_model["by"].nunique() / COLUMNS) for _, of_model in models]
    figure = Figure(figsize=(WIDTH, 0.9 + 2.5 * sum(lines)), label="Heads by selector")
    parts = figure.subfigures(len(models), 1, squeeze=False, height_ratios=lines)[:, 0]
    for (model, of_model), part, height in zip(models, parts, lines, strict=True):
        require_values(of_model, f"head_scores ({model})", "by", [PAPERS_SELECTOR])
        maps = {by: rank_map(of_model[of_model["by"] == by]) for by in selectors_in_order(of_model["by"])}
        part.suptitle(label(model))
        panels = part.subplots(height, COLUMNS, squeeze=False, sharex=True, sharey=True)
        for axes in panels.ravel()[len(maps) :]:
            axes.set_axis_off()
        for (by, later), axes in zip(maps.items(), panels.ravel(), strict=False):
            image = _draw(axes, later, maps[PAPERS_SELECTOR])
            axes.set_title(look_of(by)[0])
        part.supxlabel("head")
        part.supylabel("layer")
        part.colorbar(image, ax=panels, shrink=0.8).set_label("share of the heads that are replaced later")
    seeds = " Random: its first seed." if several else ""
    add_note(
        figure,
        f"Dots: the {SHARE:.0%} of heads that RA-I replaces first, one by one (models replace whole query groups)."
        f"{seeds} Counted from 0.",
    )
    return figure
