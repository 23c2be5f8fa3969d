"""Figure 3: training loss of the original and the converted models."""

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recurformer.paper import label
from recurformer.paper.table3 import CELLS
from recurformer.render.measurements import groups, models_in_order, require
from recurformer.render.style import WIDTH, Series, add_note, series, styled

WINDOW_SHARE = 20
"""A curve is smoothed over one part in so many of its points."""
PANELS_IN_A_ROW = 3


def _smooth(curve: pd.Series) -> pd.Series:
    """Centred running mean over a twentieth of the points, shorter at both ends."""
    return curve.rolling(max(1, round(len(curve) / WINDOW_SHARE)), center=True, min_periods=1).mean()


def _draw_model(axes: Axes, metrics: pd.DataFrame, looks: dict[float, Series]) -> None:
    for beta, runs in groups(metrics, "beta", sort=True):
        look = looks[beta]
        curves = runs.pivot_table(index="step", columns="seed", values="loss")
        for seed in curves:
            axes.plot(curves.index, curves[seed], color=look.colour, alpha=0.25, linewidth=0.7)
        name = "original" if beta == 0 else f"RecurFormer, β = {beta:g}"
        smooth = _smooth(curves.mean(axis=1))
        spacing = max(1, len(smooth) // 8)
        axes.plot(
            smooth.index, smooth, color=look.colour, linestyle=look.dashes, label=name,
            marker=look.marker, markevery=(spacing // 2 if beta else 0, spacing),
        )  # fmt: skip
    printed = {cell.beta: cell.value for cell in CELLS if cell.model == metrics["model"].iloc[0]}
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

    Args:
        metrics: model, beta, seed, step, loss (nats per token); one row a logged step.

    Raises:
        ValueError: missing columns, no rows, or no finite loss.
    """
    require(metrics, "metrics")
    logged = metrics[metrics["loss"].map(math.isfinite)]
    if logged.empty:
        raise ValueError("metrics measurements have no finite loss")
    models = models_in_order(logged)
    columns = min(len(models), PANELS_IN_A_ROW)
    lines = math.ceil(len(models) / columns)
    figure = Figure(figsize=(WIDTH if columns > 1 else 0.7 * WIDTH, 0.8 + 2.6 * lines), label="Figure 3")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    converted = sorted(set(logged["beta"]) - {0})
    looks = {beta: series(place) for place, beta in enumerate([0, *converted])}
    for model, axes in zip(models, panels, strict=False):
        _draw_model(axes, logged[logged["model"] == model], looks)
        axes.set_title(label(model))
    for axes in panels[::columns]:
        axes.set_ylabel("training loss (nats per token)")
    for axes in panels[len(models) :]:
        axes.set_axis_off()
    handles = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
    seeds = logged["seed"].nunique()
    add_note(
        figure,
        "Thick: running mean over a twentieth of the logged points" + (f", mean of {seeds} seeds" if seeds > 1 else "")
        + "; faint: as logged.",
    )  # fmt: skip
    return figure
