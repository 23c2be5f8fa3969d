"""How methods look in the figures of the ablations, and their panels of quality: one a measure and model.

A family of methods shares a hue; its methods differ in marker and dashes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from recurformer.paper import label
from recurformer.render.style import SERIES, WIDTH, Series, add_note, grid, styled
from recurformer.results.frames import by_model, groups
from recurformer.results.scores import (
    CONTINUATION,
    HASHHOP,
    METHODS,
    NEEDLE,
    Measure,
    method_label,
    scores,
    why_not_run,
)

LOOKS = {
    "original": ("", SERIES[0].colour),
    "mixer": ("heads replaced", SERIES[3].colour),
    "recovered": ("and recovered otherwise", SERIES[2].colour),
    "layers": ("layers replaced", SERIES[4].colour),
    "single": ("single heads replaced", "#56B4E9"),
    "pooled": ("fewer KV heads", SERIES[5].colour),
    "eviction": ("tokens evicted", SERIES[1].colour),
    "priced": ("bought by price", "#CC79A7"),
}
"""Family of methods -> its heading in a legend, and its hue."""
OURS = LOOKS["recovered"][1]
"""RecurFormer itself, heads replaced by Mamba, and what recovered by other recipes."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
DASHES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0, ()), (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)),
)  # fmt: skip
Method = tuple[str, str]
"""(family, method)"""


def is_ours(method: Method) -> bool:
    """Whether it is RecurFormer: heads replaced by Mamba."""
    return method == ("mixer", "mamba")


def nth_look(colour: str, place: int) -> Series:
    """The look number `place` among those of one hue."""
    return Series(colour, DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)])


def look_of(method: Method) -> Series:
    """The look of a method: the same in all figures."""
    family, name = method
    known = [*(["mamba"] if family == "recovered" else []), *METHODS.get(family, {})]  # it shares its hue with those
    colour = OURS if is_ours(method) else LOOKS[family][1]
    return nth_look(colour, known.index(name) if name in known else len(known))


def in_order(methods: set[Method]) -> list[Method]:
    """Methods as they are drawn and listed: family by family."""
    known = [(family, name) for family, names in METHODS.items() for name in names]
    return [method for method in known if method in methods] + sorted(methods - set(known))


def by_method(points: pd.DataFrame) -> list[tuple[Method, pd.DataFrame]]:
    """The rows of each method, in the order in which methods are drawn and listed."""
    by_name = dict(groups(points, ["family", "method"]))
    return [(method, by_name[method]) for method in in_order(set(by_name))]


def line_style(method: Method) -> dict[str, Any]:
    """Arguments of a line of a method: RecurFormer's stands out by its width, below the others, which it would hide."""
    look = look_of(method)
    width, size, order = (2.2, 7, 2) if is_ours(method) else (1.1, 4.5, 3)
    return {**look.line, "linewidth": width, "markersize": size, "zorder": order}


def legend_beside(figure: Figure, handles: list[Line2D]) -> Legend:
    """A legend to the right of the axes."""
    return figure.legend(handles=handles, loc="outside right center", fontsize=7.5, handlelength=2.6)


def add_methods_legend(figure: Figure, methods: set[Method], extra: tuple[Line2D, ...] = ()) -> None:
    """A legend of methods, family by family."""
    handles: list[Line2D] = []
    for family, (heading, _) in LOOKS.items():
        members = [method for method in in_order(methods) if method[0] == family]
        if members and heading:
            handles.append(Line2D([], [], linestyle="none", label=heading))
        handles += [Line2D([], [], label=method_label(*method), **line_style(method)) for method in members]
    for text in legend_beside(figure, [*handles, *extra]).get_texts():
        if text.get_text() in {heading for heading, _ in LOOKS.values()}:
            text.set_fontweight("bold")


def say_not_run(axes: Axes) -> None:
    """The word that stands in a panel which shows nothing."""
    axes.text(0.5, 0.5, "not-run", transform=axes.transAxes, ha="center", va="center")
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks([])


@dataclass(frozen=True)
class Panel:
    """What one model's panel shows of one measure; `reason` where that is nothing."""

    measure: Measure
    model: str
    points: pd.DataFrame
    reason: str

    @property
    def title(self) -> str:
        """Model and measure."""
        return f"{label(self.model)}: {self.measure.name}"


def panels_of(frames: Mapping[str, pd.DataFrame | None], chosen: Callable[[pd.DataFrame], pd.DataFrame]) -> list[Panel]:
    """One panel for each measure and model of which there are chosen points beside the original's.

    Raises:
        ValueError: there are none.
    """
    panels = []
    for measure in (HASHHOP, NEEDLE, CONTINUATION):
        frame = frames.get(measure.kind)
        if frame is None:
            continue
        for model, of_model in by_model(scores(frame, measure)):
            shown = chosen(of_model)
            if set(shown["family"]) - {"original"}:
                panels.append(Panel(measure, model, shown, why_not_run(of_model, measure)))
    if not panels:
        raise ValueError(f"no {', '.join(frames)} measurements for this figure")
    return panels


def lines_of(points: pd.DataFrame) -> Iterator[tuple[Method, bool, pd.DataFrame]]:
    """The points of each method, trained and untrained apart."""
    for method, rows in by_method(points):
        for trained in sorted(rows["trained"].unique()):
            yield method, bool(trained), rows[rows["trained"] == trained]


def show_score(axes: Axes, panel: Panel) -> None:
    """The axis of a measure: fractions from 0 to 1, perplexities logarithmic where they are far apart."""
    shown = panel.points[["low", "high"]].map(panel.measure.shown).to_numpy()
    axes.set_ylabel(panel.measure.axis)
    if panel.measure is not CONTINUATION:
        axes.set_ylim(-0.04, 1.06)
    elif np.nanmax(shown) > 3 * np.nanmin(shown):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=9))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def draw_line(axes: Axes, measure: Measure, x: pd.Series, rows: pd.DataFrame, **style: object) -> None:
    """A line of scores as readers see them, with thin bars for the intervals."""
    order = x.sort_values(kind="stable").index
    seen = rows.loc[order, ["mean", "low", "high"]].map(measure.shown)
    ends = seen[["low", "high"]]
    bars = np.abs(np.array([seen["mean"] - ends.min(axis=1), ends.max(axis=1) - seen["mean"]]))
    drawn = axes.errorbar(x.loc[order], seen["mean"], yerr=bars, elinewidth=0.7, capsize=1.5, **style)  # type: ignore[arg-type]
    for part in (*drawn[1], *drawn[2]):
        part.set_alpha(0.55)


def draw_panel(axes: Axes, panel: Panel, column: str) -> None:
    """All methods' scores over a column of the points; hollow: not trained after the change."""
    axes.set_title(panel.title)
    if panel.reason:
        say_not_run(axes)
        return
    for method, trained, rows in lines_of(panel.points):
        style = line_style(method)
        if method[0] == "original":
            style |= {"linestyle": "none", "zorder": 5}
        if not trained:
            style["markerfacecolor"] = "white"
        draw_line(axes, panel.measure, rows[column], rows, label=method_label(*method), **style)
    show_score(axes, panel)


def notes_of(panels: list[Panel]) -> list[str]:
    """Samples, tasks, training and the reasons of empty panels, one sentence each."""
    shown = [panel for panel in panels if not panel.reason]
    sizes = [f"{panel.title}: {int(panel.points['samples'].min()):,} samples or more a point." for panel in shown]
    changed = pd.concat([panel.points for panel in panels])
    changed = changed[changed["family"] != "original"]
    trained = [method_label(*method) for method, rows in by_method(changed) if rows["trained"].any()]
    training = (
        f"Trained after the change: {', '.join(trained)}; hollow: not trained after the change."
        if trained
        else "Nothing was trained after the change."
    )
    tasks = []
    if any(panel.measure is NEEDLE for panel in shown):
        tasks.append("Needles: the tasks that the original has learned.")
    if any(panel.measure is CONTINUATION for panel in shown):
        tasks.append("Perplexity: intervals of the change, without the original's differences between windows of text.")
    reasons = [f"Not-run: {panel.reason}." for panel in panels if panel.reason]
    return ["Bars: 95 % intervals.", *sizes, *tasks, training, *reasons]


def quality_figure(
    chosen: Callable[[pd.DataFrame], pd.DataFrame],
    column: str,
    axis: str,
    name: str,
    note: str,
    finish: Callable[[Axes, Panel], None] = lambda axes, panel: None,
    extra: tuple[Line2D, ...] = (),
) -> Callable[..., Figure]:
    """A figure of all measures of quality, one panel a measure and model, as a function of the measurements there are.

    Args:
        chosen: scores of one model -> those that are shown.
        column: of the scores, for the horizontal axis.
        axis: its label.
        name: of the figure.
        note: what a reader must know beside sizes, training, and the reasons of gaps.
        finish: adds to each panel that shows something.
        extra: for the legend, of what that adds.
    """

    @styled
    def draw(
        compared_hashhop: pd.DataFrame | None = None,
        needle: pd.DataFrame | None = None,
        continuation: pd.DataFrame | None = None,
    ) -> Figure:
        frames = {"compared_hashhop": compared_hashhop, "needle": needle, "continuation": continuation}
        panels = panels_of(frames, chosen)
        figure, every, _ = grid(name, len(panels), 2, lambda _, lines: (WIDTH + 0.8, max(1.2 + 2.4 * lines, 4.2)))
        for panel, axes in zip(panels, every, strict=True):
            draw_panel(axes, panel, column)
            if not panel.reason:
                axes.set_xlabel(axis)
                finish(axes, panel)
        add_methods_legend(figure, {method for panel in panels for method, *_ in lines_of(panel.points)}, extra)
        add_note(figure, " ".join([note, *notes_of(panels)]))
        return figure

    return draw
