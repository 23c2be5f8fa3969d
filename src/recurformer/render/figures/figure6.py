"""Figure 6: RA-I of every head."""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from recurformer.paper import label
from recurformer.render.measurements import groups, models_in_order, require
from recurformer.render.style import WIDTH, add_note, styled

PANELS_IN_A_ROW = 3


def ra_i_matrix(profile: pd.DataFrame) -> np.ndarray:
    """RA-I of one model, (layers, heads): samples whose recency ratio exceeds the threshold; NaN for no head."""
    recency_aware = (profile["rr"] > profile["threshold"]).astype(float).where(profile["rr"].notna())
    cells = recency_aware.groupby([profile["layer"], profile["head"]]).sum(min_count=1)
    return cells.unstack("head").sort_index().to_numpy()


@styled
def figure6(profile: pd.DataFrame) -> Figure:
    """Figure 6: RA-I of each head (to the right) in each layer (downwards), one panel a model, one colour scale.

    RA-I counts samples; the colour is its share of the model's samples, so that models with more or fewer compare.

    Args:
        profile: model, sample, layer, head, rr, threshold.

    Raises:
        ValueError: missing columns, no rows, or several thresholds for one model.
    """
    require(profile, "profile")
    models = models_in_order(profile)
    shares, facts = {}, {}
    for model, rows in groups(profile, "model"):
        if rows["threshold"].nunique() != 1:
            raise ValueError(f"profile measurements of {model} have several thresholds: RA-I is counted against one")
        samples = rows["sample"].nunique()
        shares[model] = ra_i_matrix(rows) / samples
        facts[model] = f"{label(model)}: {samples:,} samples, α = {rows['threshold'].iloc[0]:g}"
    columns = min(len(models), PANELS_IN_A_ROW)
    lines = math.ceil(len(models) / columns)
    tallest = max(len(share) for share in shares.values())
    figure = Figure(
        figsize=(WIDTH if columns > 1 else 0.55 * WIDTH, 0.9 + lines * min(4.2, 0.6 + 0.14 * tallest)), label="Figure 6"
    )
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for model, axes in zip(models, panels, strict=False):
        axes.grid(False)
        image = axes.imshow(np.ma.masked_invalid(shares[model]), vmin=0, vmax=1, aspect="auto")
        axes.set_title(label(model))
        axes.set_xlabel("head")
        axes.locator_params(integer=True)
    for axes in panels[::columns]:
        axes.set_ylabel("layer")
    for axes in panels[len(models) :]:
        axes.set_axis_off()
    figure.colorbar(image, ax=panels, shrink=0.8).set_label("RA-I / samples")
    add_note(figure, "; ".join(facts[model] for model in models) + ". Layers and heads count from 0.")
    return figure
