"""How quality recovers by tokens seen, and at equal bytes."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recurformer.paper import label
from recurformer.render.style import WIDTH, add_note, legend_above, series, styled
from recurformer.results.frames import by_model, groups, require
from recurformer.results.learned import (
    ARMS,
    RECOVERED_BY,
    arm_label,
    at_equal_bytes,
    last_points,
    recovery_points,
    state_bytes,
    untrained,
)

RECOVERED = {"divergence": "KL to the original (nats a token)", "perplexity": "perplexity"}
"""What is drawn of a recovery -> its axis."""


def _places(curves: pd.DataFrame) -> dict[str, int]:
    """The arms in the order in which they are drawn."""
    present = set(curves["arm"])
    return {arm: place for place, arm in enumerate(arm for arm in dict.fromkeys([*ARMS, *present]) if arm in present)}


def _draw_tokens(axes: Axes, curves: pd.DataFrame, quantity: str, baseline: float) -> None:
    """One line an arm over the tokens that it has read."""
    for arm, place in _places(curves).items():
        look, rows = series(place), curves[curves["arm"] == arm]
        mean = rows.groupby("tokens")[[quantity, f"{quantity}_low", f"{quantity}_high"]].mean()
        if quantity == "divergence" and arm == "original":
            mean = mean[mean[quantity] > 0]  # it is its own yardstick before it learns
        name = arm_label(arm, rows["mixer"].iloc[0])
        axes.plot(mean.index, mean[quantity], **look.line, markersize=4, label=name)
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
    axes.set_ylabel(RECOVERED[quantity])


def _draw_betas(axes: Axes, points: pd.DataFrame, baseline: float, places: dict[str, int]) -> None:
    """Perplexity over the original's at the end of each run, by the fraction of heads; of recipes with several ones.

    A shorter run of a recipe, such as `plus_98k`, looks like the recipe.
    """
    ends = last_points(points[points["beta"] > 0])
    for number, (arm, rows) in enumerate(groups(ends, "arm"), len(places)):
        if rows["beta"].nunique() > 1:
            place = places.get(str(arm), places.get(str(arm).rpartition("_")[0], number))
            look, over = series(place), rows.groupby("beta")["perplexity"].mean() / baseline
            axes.plot(over.index, over, **look.line, label=arm_label(str(arm)))
    axes.axhline(1, color="0.5", linewidth=0.8)
    axes.set_yscale("log")
    axes.margins(y=0.3)  # room for the legend
    axes.set_xticks(sorted(ends["beta"].unique()))
    axes.set_xlabel("heads replaced, β")
    axes.set_ylabel("perplexity over the original's")
    axes.legend(loc="upper left")


@styled
def recovery(recovery: pd.DataFrame) -> Figure:
    """KL to the original and perplexity on held-out windows over tokens seen, one line an arm, at the fraction of heads
    with the most recipes; and where each fraction ended.

    Of several models the first is shown.

    Raises:
        ValueError: no converted model or no original.
    """
    model, points = by_model(recovery_points(recovery))[0]
    points = points[~at_equal_bytes(points)]
    baseline = float(untrained(points, model)["perplexity"])
    converted = points[points["beta"] > 0]
    if converted.empty:
        raise ValueError("recovery measurements have no converted model: nothing recovers")
    beta = max(groups(converted, "beta"), key=lambda points: points[1]["arm"].nunique())[0]
    curves = points[points["beta"].isin([0.0, beta])]
    several = bool((converted.groupby("arm")["beta"].nunique() > 1).any())
    figure = Figure(figsize=(1.45 * WIDTH if several else WIDTH, 3.6), label="Recovery")
    panels = np.atleast_1d(figure.subplots(1, 3 if several else 2))
    for axes, quantity in zip(panels, RECOVERED, strict=False):
        _draw_tokens(axes, curves, quantity, baseline)
        axes.set_title(f"{label(model)}, β = {beta:g}")
    if several:
        _draw_betas(panels[2], points, baseline, _places(curves))
        panels[2].set_title("every β")
    legend_above(figure, panels[1:2], ncols=3)
    add_note(
        figure,
        f"{int(points['windows'].min())} held-out windows; bands: 95 % interval over them. All recipes read equally "
        "many tokens in equal batches; those of the closed form count. The learning rate falls to 0 at the end of each "
        "run, so an earlier point is worse than a shorter run would be.",
    )
    return figure


@styled
def equal_bytes(recovery: pd.DataFrame, layer_errors: pd.DataFrame) -> Figure:
    """Quality over bytes held, hollow before any training, filled after the same tokens; and the closed form's error.

    Of several models the first is shown. Arms without a closed form have no error.

    Raises:
        ValueError: no arm at equal bytes or no original.
    """
    model, points = by_model(recovery_points(recovery))[0]
    arms = points[at_equal_bytes(points)]
    if arms.empty:
        raise ValueError("recovery measurements have no arms at equal bytes: nothing to compare")
    arms = arms.assign(state=state_bytes(arms) / 1024)
    errors = require(layer_errors, "layer_errors")
    looks = {mixer: series(place) for place, mixer in enumerate(RECOVERED_BY, 1) if mixer in set(arms["mixer"])}
    figure = Figure(figsize=(1.45 * WIDTH, 3.6), label="Equal bytes")
    panels = figure.subplots(1, 3)
    for axes, (quantity, name) in zip(panels, RECOVERED.items(), strict=False):
        for mixer, look in looks.items():
            rows = arms[arms["mixer"] == mixer]  # sizes of the same mixer are joined
            for kept, filled in ((rows[rows["tokens"] == 0], False), (last_points(rows), True)):
                mean = kept.groupby("state")[[quantity, f"{quantity}_low", f"{quantity}_high"]].mean()
                error = [mean[quantity] - mean[f"{quantity}_low"], mean[f"{quantity}_high"] - mean[quantity]]
                axes.errorbar(mean.index, mean[quantity], yerr=error, color=look.colour, marker=look.marker,
                    markerfacecolor=look.colour if filled else "none", linestyle=look.dashes if filled else ":",
                    linewidth=1, capsize=2, label=RECOVERED_BY[mixer] if filled else None)  # fmt: skip
        axes.set_yscale("log")
        axes.set_xlabel("bytes that do not grow with the text (KiB)")
        axes.set_ylabel(name)
    original = float(untrained(points, model)["perplexity"])
    panels[1].axhline(original, color=series(0).colour, linewidth=1, label="original")
    for mixer, look in looks.items():
        chosen = errors[(errors["model"] == model) & (errors["mixer"] == mixer)]
        missed = chosen.groupby("layer")["after"].mean()
        panels[2].plot(missed.index, missed, **look.line, markersize=3)
    panels[2].set_ylim(0, 1)
    panels[2].set_xlabel("layer")
    panels[2].set_ylabel("fraction that the closed form misses")
    legend_above(figure, panels[1:2], ncols=5)
    ends = last_points(arms)
    add_note(
        figure,
        f"{label(model)}, β = {ends['beta'].iloc[0]:g}, the same heads. Hollow: before training. Filled: after "
        f"{ends['tokens'].max():,} tokens. Bars: 95 % interval over {ends['windows'].min()} windows. Float32. Right: "
        "fraction of the replaced heads' squared output, in the residual stream, that the closed form cannot predict.",
    )  # fmt: skip
    return figure
