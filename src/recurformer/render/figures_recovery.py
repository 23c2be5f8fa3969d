"""How quality recovers by tokens seen, and at equal bytes."""

import math

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


POSITIONS = 128
"""Positions in a bin of the figure."""


def _by_position(rows: pd.DataFrame, likelihood: str, tokens: str) -> pd.DataFrame:
    """Perplexity by the middle of a bin of positions: mean, low and high over the seeds."""
    places = (rows["position"] // POSITIONS + 0.5) * POSITIONS
    sums = rows.groupby([places, rows["seed"]])[[likelihood, tokens]].sum()
    sums = sums[sums[tokens] > 0]
    of_seeds = (sums[likelihood] / sums[tokens]).map(math.exp).groupby(level=0)
    return pd.DataFrame({"mean": of_seeds.mean(), "low": of_seeds.min(), "high": of_seeds.max()})


@styled
def comes_back(recovery: pd.DataFrame, positions: pd.DataFrame) -> Figure:
    """A row a model that learned the text from nothing, a line a fraction of heads: held-out perplexity over
    the tokens of the training after the conversion; at its end perplexity by position, of all tokens and of recalled
    ones.

    Raises:
        ValueError: no model of `positions` has a curve of recovery.
    """
    ends = require(positions, "positions")
    ends = ends.assign(beta=ends["setting"].where(ends["family"] != "original", 0.0))
    curves = recovery_points(recovery)
    curves = curves[curves["arm"].isin(["original", "paper"])]
    models = [(model, rows) for model, rows in by_model(ends) if model in set(curves["model"])]
    if not models:
        raise ValueError("recovery measurements have no model of the positions measurements: nothing comes back")
    figure = Figure(figsize=(1.45 * WIDTH, 0.6 + 2.6 * len(models)), label="Comes back")
    panels = figure.subplots(len(models), 3, squeeze=False)
    for row, (model, rows) in zip(panels, models, strict=True):
        mine = curves[curves["model"] == model]
        for place, beta in enumerate(sorted(rows["beta"].unique())):
            look, at = series(place), rows[np.isclose(rows["beta"], beta)]
            seeds = mine[np.isclose(mine["beta"], beta)].groupby("tokens")["perplexity"]
            over_tokens = pd.DataFrame({"mean": seeds.mean(), "low": seeds.min(), "high": seeds.max()})
            of_all = _by_position(at, "negative_log_likelihood", "tokens")
            of_recalled = _by_position(at, "recalled_likelihood", "recalled")
            name = "original, trained likewise" if beta == 0 else f"β = {beta:g}"
            for axes, line in zip(row, (over_tokens, of_all, of_recalled), strict=True):
                axes.plot(line.index, line["mean"], **look.line, markersize=4, label=name)
                axes.fill_between(line.index, line["low"], line["high"], color=look.colour, alpha=0.15, linewidth=0)
        for axes, title in zip(row, ("held-out text", "by position", "recalled tokens, by position"), strict=True):
            axes.set_yscale("log")
            axes.set_title(f"{label(model)}: {title}")
            axes.set_ylabel("perplexity")
        first = mine.loc[mine["tokens"] > 0, "tokens"].min()
        row[0].set_xscale("symlog", linthresh=first, linscale=0.4)
        row[0].set_xlabel("tokens of the training")
        for axes in row[1:]:
            axes.set_xlabel("position in the window (tokens)")
    legend_above(figure, panels[0, 1:2], ncols=4)
    add_note(
        figure,
        f"Mean of {ends['seed'].nunique()} trainings, bands from the lowest to the highest. All read equally many "
        "tokens. Recalled: tokens of rare pairs that stood before in the window, at least 64 tokens back.",
    )
    return figure
