"""Figure 4: accuracy in multi-query associative recall against the share of replaced heads."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recurformer.render.style import WIDTH, add_note, grid, legend_above, series, styled
from recurformer.results.frames import groups, require, require_values
from recurformer.results.learned import TRIAL, accuracy_of, at_best_rate, best_learning_rates, why_mqar_not_run

PANELS_IN_A_ROW = 4


def _draw_best(axes: Axes, rows: pd.DataFrame, best: dict[float, float]) -> None:
    by_seed = accuracy_of(at_best_rate(rows, best), ["beta", "seed"]).groupby("beta")
    mean = by_seed.mean()
    spread = [mean - by_seed.min(), by_seed.max() - mean]
    look = series(2)
    axes.errorbar(
        mean.index, mean, yerr=spread if by_seed.size().max() > 1 else None, color=look.colour, linestyle="-",
        marker=look.marker, capsize=2.5, elinewidth=1, label="RecurFormer, best learning rate",
    )  # fmt: skip
    original = mean[mean.index == 0]
    axes.plot(
        original.index, original, series(0).marker, color=series(0).colour, markersize=6.5, zorder=3,
        label="original (β = 0), best rate",
    )  # fmt: skip
    chance = float((rows["queries"] / rows["pairs"]).sum() / rows["queries"].sum())
    axes.axhline(
        chance, color=series(1).colour, linestyle=series(1).dashes, linewidth=1, label="chance: any value shown"
    )


def _note(test: pd.DataFrame, best: dict[float, float], reason: str) -> str:
    betas = {rate: [beta for beta, chosen in sorted(best.items()) if chosen == rate] for rate in sorted(best.values())}
    rates = "; ".join(f"{rate:g} for β = {', '.join(f'{beta:g}' for beta in shown)}" for rate, shown in betas.items())
    seeds = test["seed"].nunique()
    points = f"Points: mean of {seeds} seeds, bars: lowest to highest seed." if seeds > 1 else "One seed."
    return (
        f"Learning rate chosen for each β by the mean accuracy on validation samples of the trained lengths: {rates}.\n"
        f"{reason or points}"
    )


@styled
def figure4(mqar: pd.DataFrame) -> Figure:
    """Figure 4: accuracy against beta, one panel a test length, at each beta's best learning rate.

    The rate is chosen by `best_learning_rates`, on the validation split; the panels show the test split, all rates as
    faint points. Chance is guessing one of the values in the sample, 1 / pairs. Where the original has not learned the
    task (`why_mqar_not_run`), the panels say "not-run" and show the faint points alone.

    Raises:
        ValueError: no row of one of the splits.
    """
    require(mqar, "mqar")
    require_values(mqar, "mqar", "split", ["validation", "test"])
    best = best_learning_rates(mqar)
    test = mqar[mqar["split"] == "test"]
    reason = why_mqar_not_run(mqar, best)
    panels = groups(test, "length", sort=True)
    figure, shown, columns = grid(
        "Figure 4", len(panels), PANELS_IN_A_ROW, lambda _, lines: (WIDTH, 1.2 + 2.6 * lines), sharey=True
    )
    betas = sorted(test["beta"].unique())
    for place, ((length, rows), axes) in enumerate(zip(panels, shown, strict=True)):
        every, name = accuracy_of(rows, TRIAL), "every learning rate and seed"
        axes.plot(every.index.get_level_values("beta"), every, "x", color="0.6", markersize=4, label=name)
        if reason:
            plate = {"facecolor": "white", "edgecolor": "none", "pad": 2, "alpha": 0.75}  # word and points both show
            axes.text(0.5, 0.5, "not-run", transform=axes.transAxes, ha="center", va="center", bbox=plate, zorder=4)
        else:
            _draw_best(axes, rows, best)
        kind = "trained" if rows["trained_length"].astype(bool).any() else "not trained"
        pairs = ", ".join(f"{count}" for count in sorted(rows["pairs"].unique()))
        axes.set_title(f"({chr(ord('a') + place)}) {length:,} tokens\n{pairs} pairs, {kind}")
        axes.set_xlabel("heads replaced, β")
        axes.set_xticks(betas, [f"{beta:g}" for beta in betas], rotation=60)
        axes.set_ylim(-0.03, 1.05)
    for axes in shown[::columns]:
        axes.set_ylabel("accuracy (share of correct values)")
    legend_above(figure, shown[:1], ncols=2)
    add_note(figure, _note(test, best, reason))
    return figure
