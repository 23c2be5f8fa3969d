"""Figure 4: accuracy in multi-query associative recall against the share of replaced heads."""

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recurformer.render.measurements import groups, require
from recurformer.render.style import WIDTH, add_note, series, styled

PANELS_IN_A_ROW = 4
RUN = ["beta", "learning_rate", "seed"]


def _accuracy(mqar: pd.DataFrame, keys: list[str]) -> pd.Series:
    """Correct answers over queries of each group."""
    sums = mqar.groupby(keys)[["correct", "queries"]].sum()
    return sums["correct"] / sums["queries"]


def best_learning_rates(mqar: pd.DataFrame) -> dict[float, float]:
    """For each beta the learning rate with the highest mean accuracy on the trained lengths, over all seeds.

    Lengths that were not trained take no part: what a panel of such a length shows was not selected on it. The smaller
    rate wins a tie.

    Raises:
        ValueError: no row is of a trained length.
    """
    trained = mqar[mqar["trained_length"].astype(bool)]
    if trained.empty:
        raise ValueError(
            "mqar measurements have no row with trained_length = True: the learning rate is chosen on these"
        )
    score = _accuracy(trained, [*RUN, "length"]).groupby(["beta", "learning_rate"]).mean()
    return {float(beta): float(score[beta].sort_index().idxmax()) for beta in score.index.unique("beta")}


def _draw_length(axes: Axes, rows: pd.DataFrame, best: dict[float, float]) -> None:
    chosen = rows[rows["learning_rate"] == rows["beta"].map(best)]
    every = _accuracy(rows, RUN).reset_index(name="accuracy")
    axes.plot(every["beta"], every["accuracy"], "x", color="0.6", markersize=4, label="every learning rate and seed")
    by_seed = _accuracy(chosen, ["beta", "seed"]).groupby("beta")
    mean = by_seed.mean()
    spread = [mean - by_seed.min(), by_seed.max() - mean]
    look = series(2)
    axes.errorbar(
        mean.index, mean, yerr=spread if by_seed.size().max() > 1 else None, color=look.colour, linestyle="-",
        marker=look.marker, capsize=2.5, elinewidth=1, label="RecurFormer, best learning rate",
    )  # fmt: skip
    if 0.0 in mean.index:
        axes.plot(
            [0.0],
            [mean[0.0]],
            series(0).marker,
            color=series(0).colour,
            markersize=6.5,
            zorder=3,
            label="original (β = 0), best rate",
        )
    chance = float((rows["queries"] / rows["pairs"]).sum() / rows["queries"].sum())
    axes.axhline(
        chance, color=series(1).colour, linestyle=series(1).dashes, linewidth=1, label="chance: any value shown"
    )


@styled
def figure4(mqar: pd.DataFrame) -> Figure:
    """Figure 4: accuracy against beta, one panel a test length, at each beta's best learning rate.

    The rate is chosen by `best_learning_rates`, on the trained lengths alone; all rates are shown as faint points.
    Chance is guessing one of the values in the sample, 1 / pairs.

    Args:
        mqar: beta, learning_rate, seed, length (tokens), pairs, trained_length (bool), correct, queries.

    Raises:
        ValueError: missing columns, no rows, or no trained length.
    """
    require(mqar, "mqar")
    best = best_learning_rates(mqar)
    panels = groups(mqar, "length", sort=True)
    columns = min(len(panels), PANELS_IN_A_ROW)
    lines = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(WIDTH, 1.2 + 2.6 * lines), label="Figure 4")
    rows_of_axes = figure.subplots(lines, columns, sharey=True, squeeze=False).ravel()
    for place, ((length, rows), axes) in enumerate(zip(panels, rows_of_axes, strict=False)):
        _draw_length(axes, rows, best)
        kind = "trained" if rows["trained_length"].astype(bool).any() else "not trained"
        pairs = ", ".join(f"{count}" for count in sorted(rows["pairs"].unique()))
        axes.set_title(f"({chr(ord('a') + place)}) {length:,} tokens\n{pairs} pairs, {kind}")
        axes.set_xlabel("heads replaced, β")
        axes.set_xticks(
            sorted(mqar["beta"].unique()), [f"{beta:g}" for beta in sorted(mqar["beta"].unique())], rotation=60
        )
        axes.set_ylim(-0.03, 1.05)
    for axes in rows_of_axes[::columns]:
        axes.set_ylabel("accuracy (share of correct values)")
    for axes in rows_of_axes[len(panels) :]:
        axes.set_axis_off()
    handles, labels = rows_of_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    by_rate = {
        rate: [beta for beta, chosen in sorted(best.items()) if chosen == rate] for rate in sorted(best.values())
    }
    rates = "; ".join(f"{rate:g} for β = {', '.join(f'{beta:g}' for beta in betas)}" for rate, betas in by_rate.items())
    seeds = mqar["seed"].nunique()
    add_note(
        figure,
        f"Learning rate chosen for each β by the mean accuracy on the trained lengths only: {rates}.\n"
        + (f"Points: mean of {seeds} seeds, bars: lowest to highest seed." if seeds > 1 else "One seed.")
    )  # fmt: skip
    return figure
