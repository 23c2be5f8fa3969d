"""How much the choice of heads hangs on the threshold α and the window k of RA-I."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from recurformer.paper import label
from recurformer.render.figures.matrix import show_shares
from recurformer.render.style import SERIES, WIDTH, add_note, styled
from recurformer.results.frames import by_model, require
from recurformer.results.scores import changed_share, default_setting, one_unit

BETAS_SHOWN = 4
UNITS = {"kv_group": "whole query groups", "head": "single heads"}
DARK = 0.5
"""Up to this share of the scale a cell is dark, and its number white."""


def _draw(axes: Axes, matrix: pd.DataFrame, top: float, default: tuple[float, float]) -> AxesImage:
    image = show_shares(axes, matrix, matrix <= DARK * top, size=7.5, top=top)
    axes.set_xticks(range(matrix.shape[1]), [f"{window:g}" for window in matrix.columns])
    axes.set_yticks(range(matrix.shape[0]), [f"{threshold:g}" for threshold in matrix.index])
    window, threshold = np.argmax(matrix.columns == default[0]), np.argmax(matrix.index == default[1])
    corner = (float(window) - 0.47, float(threshold) - 0.47)
    axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=SERIES[5].colour, linewidth=2))
    axes.set_xlabel("window k (tokens)")
    return image


@styled
def ablation_ra_i(ra_i_settings: pd.DataFrame) -> Figure:
    """Share of the chosen heads that changes with α (downwards) and k (to the right): a row a model, a panel a β."""
    rows = one_unit(require(ra_i_settings, "ra_i_settings"))
    rows = rows.assign(changed=changed_share(rows))
    models = by_model(rows)
    betas = sorted(rows["beta"].unique())
    places = np.linspace(0, len(betas) - 1, min(len(betas), BETAS_SHOWN)).round().astype(int)
    shown = [betas[place] for place in places]
    figure = Figure(figsize=(WIDTH, 1.0 + 2.2 * len(models)), label="Sensitivity of RA-I")
    panels = figure.subplots(len(models), len(shown), squeeze=False, sharex="row", sharey="row")
    top = max(float(rows["changed"].max()), 0.1)
    notes = []
    for (model, of_model), line in zip(models, panels, strict=True):
        default = default_setting(of_model)
        for beta, axes in zip(shown, line, strict=True):
            at_beta = of_model[of_model["beta"] == beta]
            matrix = at_beta.pivot_table(index="threshold", columns="window", values="changed")
            image = _draw(axes, matrix, top, default)
            axes.set_title(f"{label(model)}\nβ = {beta:g}")
        line[0].set_ylabel("threshold α")
        others = of_model[of_model["changed"] > 0]
        correlation = f", lowest rank correlation {others['rank_correlation'].min():.2f}" if len(others) else ""
        units = " or ".join(UNITS.get(unit, unit) for unit in sorted(of_model["unit"].unique()))
        defaults = f"default k = {default[0]:g}, α = {default[1]:g}"
        notes.append(f"{label(model)}: chosen are {units}, {defaults}{correlation}.")
    figure.colorbar(image, ax=panels, shrink=0.85).set_label("chosen heads that change (share)")
    notes.append("Numbers: per cent. Framed: the default, against which the others are compared.")
    add_note(figure, " ".join(notes))
    return figure
