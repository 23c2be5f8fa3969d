"""Figure 3: training loss of the original and the converted models."""

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recurformer.paper import CELLS, label
from recurformer.render.style import WIDTH, Series, add_note, grid, legend_above, series, styled
from recurformer.results.frames import by_model, groups, require

WINDOW_SHARE = 20
"""A curve is the running mean over one part in so many of its points, over fewer at both ends."""
PANELS_IN_A_ROW = 3


def _draw_model(axes: Axes, model: str, metrics: pd.DataFrame, looks: dict[float, Series]) -> None:
    for beta, runs in groups(metrics, "beta", sort=True):
        look = looks[beta]
        curves = runs.pivot_table(index="step", columns="seed", values="loss")
        for seed in curves:
            axes.plot(curves.index, curves[seed], color=look.colour, alpha=0.25, linewidth=0.7)
        name = "original" if beta == 0 else f"RecurFormer, β = {beta:g}"
        points = max(1, round(len(curves) / WINDOW_SHARE))
        smooth = curves.mean(axis=1).rolling(points, center=True, min_periods=1).mean()
        spacing = max(1, len(smooth) // 8)
        axes.plot(
            smooth.index, smooth, color=look.colour, linestyle=look.dashes, label=name,
            marker=look.marker, markevery=(spacing // 2 if beta else 0, spacing),
        )  # fmt: skip
    printed = {cell.beta: cell.value for cell in CELLS if cell.table == 3 and cell.model == model}
    for beta in set(looks).intersection(printed):
        axes.plot(
            metrics["step"].max(), math.log(printed[beta]), "*", color=looks[beta].colour, markersize=11, clip_on=False,
            label=f"paper's perplexity, {'original' if beta == 0 else f'β = {beta:g}'}",
        )  # fmt: skip
    axes.set_xlabel("training step")


@styled
def figure3(metrics: pd.DataFrame) -> Figure:
    """Figure 3: loss during the continual training of the original and of RecurFormer, one panel a model.

    The paper prints no loss. Where it prints the perplexity of a model after its training (Table 3), the logarithm of
    it stands as a star at the last step.

    Raises:
        ValueError: no finite loss.
    """
    require(metrics, "metrics")
    logged = metrics[metrics["loss"].map(math.isfinite)]
    if logged.empty:
        raise ValueError("metrics measurements have no finite loss")
    models = by_model(logged)
    figure, panels, columns = grid(
        "Figure 3", len(models), PANELS_IN_A_ROW,
        lambda columns, lines: (WIDTH if columns > 1 else 0.7 * WIDTH, 0.8 + 2.6 * lines),
    )  # fmt: skip
    converted = sorted(set(logged["beta"]) - {0})
    looks = {beta: series(place) for place, beta in enumerate([0, *converted])}
    for (model, rows), axes in zip(models, panels, strict=True):
        _draw_model(axes, model, rows, looks)
        axes.set_title(label(model))
    for axes in panels[::columns]:
        axes.set_ylabel("training loss (nats per token)")
    legend_above(figure, panels, ncols=3)
    seeds = logged["seed"].nunique()
    of_seeds = f", mean of {seeds} seeds" if seeds > 1 else ""
    add_note(figure, f"Thick: running mean over a twentieth of the logged points{of_seeds}; faint: as logged.")
    return figure
