"""Figure 6: RA-I of every head."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from recurformer.paper import label
from recurformer.render.style import WIDTH, add_note, grid, styled
from recurformer.results.frames import by_model, require

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

    Raises:
        ValueError: several thresholds for one model.
    """
    require(profile, "profile")
    shares, facts = {}, []
    for model, rows in by_model(profile):
        if rows["threshold"].nunique() != 1:
            raise ValueError(f"profile measurements of {model} have several thresholds: RA-I is counted against one")
        samples = rows["sample"].nunique()
        shares[model] = ra_i_matrix(rows) / samples
        facts.append(f"{label(model)}: {samples:,} samples, α = {rows['threshold'].iloc[0]:g}")
    tallest = max(len(share) for share in shares.values())

    def size(columns: int, lines: int) -> tuple[float, float]:
        return WIDTH if columns > 1 else 0.55 * WIDTH, 0.9 + lines * min(4.2, 0.6 + 0.14 * tallest)

    figure, panels, columns = grid("Figure 6", len(shares), PANELS_IN_A_ROW, size)
    for (model, share), axes in zip(shares.items(), panels, strict=True):
        axes.grid(False)
        image = axes.imshow(np.ma.masked_invalid(share), vmin=0, vmax=1, aspect="auto")
        axes.set_title(label(model))
        axes.set_xlabel("head")
        axes.locator_params(integer=True)
    for axes in panels[::columns]:
        axes.set_ylabel("layer")
    figure.colorbar(image, ax=figure.axes, shrink=0.8).set_label("RA-I / samples")
    add_note(figure, "; ".join(facts) + ". Layers and heads count from 0.")
    return figure
