"""The recovery of converted models: divergence from the original and perplexity over the tokens seen."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recurformer.paper import label
from recurformer.render.measurements import by_model, groups
from recurformer.render.recovery import ARMS, QUANTITIES, arm_label, at_equal_bytes, last_points, points, untrained
from recurformer.render.style import WIDTH, add_note, legend_above, series, styled


def _places(curves: pd.DataFrame) -> dict[str, int]:
    """The arms in the order in which they are drawn."""
    found = set(curves["arm"])
    return {arm: place for place, arm in enumerate(arm for arm in dict.fromkeys([*ARMS, *found]) if arm in found)}


def _draw_tokens(axes: Axes, curves: pd.DataFrame, quantity: str, baseline: float) -> None:
    """One line an arm over the tokens that it has read."""
    for arm, place in _places(curves).items():
        look, rows = series(place), curves[curves["arm"] == arm]
        mean = rows.groupby("tokens")[[quantity, f"{quantity}_low", f"{quantity}_high"]].mean()
        if quantity == "divergence" and arm == "original":
            mean = mean[mean[quantity] > 0]  # it is its own yardstick before it learns
        axes.plot(mean.index, mean[quantity], color=look.colour, linestyle=look.dashes, marker=look.marker,
            markersize=4, label=arm_label(arm, rows["mixer"].iloc[0]))  # fmt: skip
        axes.fill_between(mean.index, mean[f"{quantity}_low"], mean[f"{quantity}_high"], color=look.colour, alpha=0.12,
            linewidth=0)  # fmt: skip
    if quantity == "perplexity":
        axes.axhline(baseline, color="0.5", linewidth=0.8, label="original, as it was")
    first = curves.loc[curves["tokens"] > 0, "tokens"].min()
    axes.set_xscale("symlog", linthresh=first, linscale=0.4)
    axes.set_xlim(left=-0.1 * first)
    axes.set_xticks([0, *(10.0**power for power in range(1, 10) if first <= 10**power <= curves["tokens"].max())])
    axes.set_yscale("log")
    axes.set_xlabel("tokens seen")
    axes.set_ylabel(QUANTITIES[quantity])


def _draw_betas(axes: Axes, found: pd.DataFrame, baseline: float, places: dict[str, int]) -> None:
    """Perplexity over the original's at the end of each run, by the share of heads; of recipes with several shares.

    A shorter run of a recipe, such as `plus_98k`, looks like the recipe.
    """
    ends = last_points(found[found["beta"] > 0])
    for number, (arm, rows) in enumerate(groups(ends, "arm"), len(places)):
        if rows["beta"].nunique() > 1:
            place = places.get(str(arm), places.get(str(arm).rpartition("_")[0], number))
            look, over = series(place), rows.groupby("beta")["perplexity"].mean() / baseline
            axes.plot(over.index, over, color=look.colour, linestyle=look.dashes, marker=look.marker,
                      label=arm_label(str(arm)))  # fmt: skip
    axes.axhline(1, color="0.5", linewidth=0.8)
    axes.set_yscale("log")
    axes.margins(y=0.3)  # room for the legend
    axes.set_xticks(sorted(ends["beta"].unique()))
    axes.set_xlabel("heads replaced, β")
    axes.set_ylabel("perplexity over the original's")
    axes.legend(loc="upper left")


@styled
def recovery(recovery: pd.DataFrame) -> Figure:
    """KL to the original and perplexity on held-out windows over tokens seen, one line an arm, at the share of heads
    with the most recipes; and where each share ended.

    Of several models the first is shown.

    Raises:
        ValueError: no converted model or no original.
    """
    model, found = by_model(points(recovery))[0]
    found = found[~at_equal_bytes(found)]
    baseline = float(untrained(found, model)["perplexity"])
    converted = found[found["beta"] > 0]
    if converted.empty:
        raise ValueError("recovery measurements have no converted model: nothing recovers")
    beta = max(groups(converted, "beta"), key=lambda found: found[1]["arm"].nunique())[0]
    curves = found[found["beta"].isin([0.0, beta])]
    several = bool((converted.groupby("arm")["beta"].nunique() > 1).any())
    figure = Figure(figsize=(1.45 * WIDTH if several else WIDTH, 3.6), label="Recovery")
    panels = np.atleast_1d(figure.subplots(1, 3 if several else 2))
    for axes, quantity in zip(panels, QUANTITIES, strict=False):
        _draw_tokens(axes, curves, quantity, baseline)
        axes.set_title(f"{label(model)}, β = {beta:g}")
    if several:
        _draw_betas(panels[2], found, baseline, _places(curves))
        panels[2].set_title("every β")
    legend_above(figure, panels[1:2], ncols=3)
    add_note(
        figure,
        f"{int(found['windows'].min())} held-out windows; bands: 95 % interval over them. All recipes read equally "
        "many tokens in equal batches; those of the closed form count. The learning rate falls to 0 at the end of each "
        "run, so an earlier point is worse than a shorter run would be.",
    )
    return figure
