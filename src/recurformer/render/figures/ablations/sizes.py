"""Quality on HashHop at other lengths and hops than those of the training."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from recurformer.paper import label
from recurformer.render.figures.ablations.looks import (
    COLOURS,
    OURS,
    Method,
    by_method,
    is_ours,
    legend_beside,
    nth_look,
    say_not_run,
)
from recurformer.render.figures.ablations.panels import draw_line
from recurformer.render.style import WIDTH, add_note, styled
from recurformer.results.frames import by_model, groups
from recurformer.results.learned import LEARNED
from recurformer.results.scores import HASHHOP_SIZES, identified, method_label, scores

LENGTH_AXES = {"tokens": "chains in the prompt", "text": "characters in the prompt"}
"""Form of the task -> what its size counts."""
Drawn = tuple[Method, float]
"""A method and its share of heads replaced."""


def _lines(points: pd.DataFrame) -> list[tuple[Drawn, pd.DataFrame]]:
    return [
        ((method, setting), found)
        for method, rows in by_method(points)
        for setting, found in groups(rows, "setting", sort=True)
    ]


def _looks(points: pd.DataFrame) -> dict[Drawn, dict[str, Any]]:
    """One hue a method, one marker and dash a share."""
    looks: dict[Drawn, dict[str, Any]] = {}
    for (method, setting), _ in _lines(points):
        place = sum(known == method for known, _ in looks)
        look = nth_look(OURS if is_ours(method) else COLOURS[method[0]], place)
        looks[method, setting] = {
            "color": look.colour, "linestyle": look.dashes, "marker": look.marker, "markersize": 5, "linewidth": 1.4,
        }  # fmt: skip
    return looks


def _draw(axes: Axes, points: pd.DataFrame, column: str, looks: dict[Drawn, dict[str, Any]]) -> None:
    trained = points.loc[points["as_trained"], column]
    if trained.nunique() == 1:
        axes.axvline(trained.iloc[0], color="0.5", linewidth=6, alpha=0.25, zorder=0)
    for drawn, rows in _lines(points):
        draw_line(axes, HASHHOP_SIZES, rows[column], rows, **looks[drawn])
    axes.axhline(LEARNED, color="0.5", linewidth=0.8, linestyle=":", zorder=1)
    axes.set_ylim(-0.04, 1.06)
    axes.set_ylabel(HASHHOP_SIZES.axis)
    axes.locator_params(axis="x", integer=True)


def _name(drawn: Drawn) -> str:
    (family, method), setting = drawn
    return method_label(family, method) + ("" if family == "original" else f", β = {setting:g}")


@styled
def ablation_sizes(hashhop_sizes: pd.DataFrame) -> Figure:
    """h_gq over the prompt's length, at the hops of the training, and over the hops, at its length: a row a model."""
    rows = identified(hashhop_sizes, HASHHOP_SIZES.kind)
    points = pd.concat([
        scores(found, HASHHOP_SIZES).assign(hops=hops, size=size, as_trained=bool(found["as_trained"].iloc[0]))
        for (hops, size), found in groups(rows, ["hops", "size"])
    ], ignore_index=True)  # fmt: skip
    models, looks = by_model(points), _looks(points)
    figure = Figure(figsize=(WIDTH + 0.8, 1.6 + 2.6 * len(models)), label="HashHop at other lengths and hops")
    lines = figure.subplots(len(models), 2, squeeze=False)
    for (model, of_model), (by_size, by_hops) in zip(models, lines, strict=True):
        trained = of_model[of_model["as_trained"]]
        length = LENGTH_AXES[rows["form"].iloc[0]]
        for axes, column, kept, axis, unit in (
            (by_size, "size", "hops", length, "hops"),
            (by_hops, "hops", "size", "hops asked for", length.split()[0]),
        ):
            shown = of_model[of_model[kept].isin(trained[kept])]
            axes.set_title(f"{label(model)}: {', '.join(f'{size:,}' for size in trained[kept].unique())} {unit}")
            if shown[column].nunique() < 2:
                say_not_run(axes)
                continue
            _draw(axes, shown, column, looks)
            axes.set_xlabel(axis)
    legend_beside(figure, [Line2D([], [], label=_name(drawn), **style) for drawn, style in looks.items()])
    add_note(
        figure,
        f"Bars: 95 % intervals over {int(points['samples'].min()):,} samples or more a point. Grey: the size of the "
        f"training. Dotted: {LEARNED:g}, an original below it decides nothing about its variants.",
    )
    return figure
