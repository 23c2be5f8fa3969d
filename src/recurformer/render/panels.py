"""How methods look in the figures of the ablations, and their panels of quality: one a measure and model.

A family of methods shares a hue; its methods differ in shade, marker and dashes. Of those that evict tokens, the best
known have hues of their own, the others are grey.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import matplotlib.patheffects as effects
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, DrawingArea
from matplotlib.transforms import ScaledTranslation

from recurformer.paper import label
from recurformer.render.style import SERIES, WIDTH, Series, add_note, grid, styled
from recurformer.results.frames import by_model, groups
from recurformer.results.scores import (
    CONTINUATION,
    DIVERGENCE,
    HASHHOP,
    METHODS,
    NEEDLE,
    Measure,
    by_method,
    method_label,
    scores,
    why_not_run,
)

LOOKS = {
    "original": ("", SERIES[0].colour),
    "mixer": ("heads replaced", SERIES[3].colour),
    "recovered": ("and recovered otherwise", SERIES[2].colour),
    "layers": ("layers replaced", SERIES[4].colour),
    "single": ("single heads replaced", "#7A5195"),
    "pooled": ("fewer KV heads", SERIES[5].colour),
    "eviction": ("tokens evicted", "#8A8A8A"),
    "priced": ("bought by price", "#CC79A7"),
    "chosen": ("other heads", "#8C564B"),
}
"""Family of methods -> its heading in a legend, and its hue."""
BEST_KNOWN = {"streaming_llm": "#7A2A00", "h2o": "#F59A23", "snapkv": "#E0284F", "razor_attention": "#6A3D9A"}
"""Methods that evict tokens -> their hues."""
OURS = LOOKS["recovered"][1]
"""RecurFormer itself, heads replaced by Mamba, and what recovered by other recipes."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
DASHES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0, ()), (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)),
)  # fmt: skip
SHADES = (("white", 0.0), ("black", 0.45), ("white", 0.4))
"""What a hue is mixed with, and how much of it, from three methods to the next three."""
FAR = 2.0
"""Perplexities of more than so many times the best are not drawn, but written at the panel's edge."""
FEW = 10
"""Samples of which fewer make a point that no line joins."""
NAME = 0.13
"""Height of a line's name, in inches."""
ASIDE = 0.03
"""Inches between two methods of a family at the same place."""
Method = tuple[str, str]
"""(family, method)"""


def is_ours(method: Method) -> bool:
    """Whether it is RecurFormer: heads replaced by Mamba."""
    return method == ("mixer", "mamba")


def nth_look(colour: str, place: int) -> Series:
    """The look number `place` among those of one hue."""
    other, part = SHADES[place // 3 % len(SHADES)]
    red, green, blue = (1 - part) * np.array(to_rgb(colour)) + part * np.array(to_rgb(other))
    return Series(
        to_hex((red, green, blue)) if part else colour, DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)]
    )


def look_of(method: Method) -> Series:
    """The look of a method: the same in all figures."""
    family, name = method
    known = [*(["mamba"] if family == "recovered" else []), *METHODS.get(family, {})]  # it shares its hue with those
    colour = OURS if is_ours(method) else LOOKS[family][1]
    look = nth_look(colour, known.index(name) if name in known else len(known))
    return replace(look, colour=BEST_KNOWN.get(name, colour)) if family == "eviction" else look


def line_style(method: Method) -> dict[str, Any]:
    """Arguments of a line of a method: RecurFormer's stands out by its width, below the others, which it would hide."""
    look = look_of(method)
    width, size, order = (2.2, 7, 2) if is_ours(method) else (1.1, 4.5, 3)
    return {**look.line, "linewidth": width, "markersize": size, "zorder": order}


End = tuple[str, tuple[float, float], dict[str, Any]]
"""The name of a line, its last point and its style."""


def name_lines(axes: Axes, ends: list[End], inches: float) -> None:
    """The name of each line right of a panel of so many inches, behind a piece of the line and as high as its last
    point, or as much lower or higher as the other names make it. Called when the limits of the axes are set.
    """
    place = (axes.transScale + axes.transLimits).transform
    seen = [end for end in ends if 0 <= place(end[1])[1] <= 1]  # not 0 on a logarithmic axis
    highest = sorted(seen, key=lambda end: tuple(-place(end[1])[::-1].round(3)))
    steps = NAME / inches * np.arange(len(highest))
    wanted = np.array([place(point)[1] for _, point, _ in highest])
    heights = np.maximum(np.minimum.accumulate(wanted + steps) - steps, steps[::-1])
    for (name, _, style), height in zip(highest, heights, strict=True):
        axes.annotate(name, (1, height), (33, 0), "axes fraction", "offset points", va="center", fontsize=7)
        piece = DrawingArea(24, 0)
        piece.add_artist(Line2D([0, 12, 24], [0, 0, 0], **style, markevery=[1]))
        axes.add_artist(AnnotationBbox(piece, (1, height), (6, 0), "axes fraction", "offset points", frameon=False,
            box_alignment=(0, 0.5), pad=0))  # fmt: skip


def name_beta(axes: Axes, beta: float, point: tuple[float, float], above: float) -> None:
    """A point's β, so many printer's points above it."""
    text = axes.annotate(f"β {beta:g}", point, (5, above), textcoords="offset points", fontsize=7, zorder=6)
    text.set_path_effects([effects.withStroke(linewidth=2, foreground="white")])


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
    def far(self) -> pd.Series:
        """Which points are so far off that their perplexities are not drawn."""
        shown = self.points["mean"].map(self.measure.shown)
        return (shown > FAR * shown.min()) & (self.measure is CONTINUATION)

    @property
    def few(self) -> pd.Series:
        """Which points a line would join by chance. Not divergences, which are from the original on the same text."""
        return (self.points["samples"] < FEW) & (self.measure.parts != DIVERGENCE.parts)

    def name(self, point: pd.Series) -> str:
        """Of a point's method, where it was shown both trained and not also which of them it is."""
        method = [point["family"], point["method"]]
        alike = self.points.loc[(self.points[["family", "method"]] == method).all(axis=1), "trained"]
        return method_label(*method) + (", trained" if point["trained"] and not alike.all() else "")

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


def lines_of(points: pd.DataFrame) -> list[tuple[Method, bool, pd.DataFrame]]:
    """The points of each method, trained and untrained apart."""
    return [(method, *line) for method, rows in by_method(points) for line in groups(rows, "trained", sort=True)]


def show_score(axes: Axes, panel: Panel, column: str, name: Callable[[pd.Series], str]) -> None:
    """The axis of a measure: fractions from 0 to 1; of perplexities those near the best, and the others in words, by
    their place in `column`, with an arrow to where they would be.
    """
    axes.set_ylabel(panel.measure.axis)
    if panel.measure is not CONTINUATION:
        axes.set_ylim(-0.04, 1.06)
        return
    shown = panel.points[["mean", "low", "high"]].map(panel.measure.shown)
    beyond = groups(panel.points[panel.far], column)
    lowest, highest = shown["high"].min(), min(shown.loc[~panel.far, "low"].max(), FAR * shown["mean"].min())
    words = max((len(rows) for _, rows in beyond), default=-1)
    span = max(highest - lowest, 0.1 * lowest) / (0.85 - 0.08 * words)
    axes.set_ylim(lowest - 0.05 * span, lowest + 0.95 * span)
    axes.margins(x=0.12 if beyond else None)  # for the words
    for x, rows in beyond:
        worst_first = (point for _, point in rows.sort_values("mean").iterrows())
        told = [f"{name(one).partition(' (')[0]}: {panel.measure.shown(one['mean']):,.0f}" for one in worst_first]
        axes.annotate(
            "\n".join(told), (x, 1), (0, -12), ("data", "axes fraction"), "offset points", ha="center", va="top",
            fontsize=7, arrowprops={"arrowstyle": "->"},
        )  # fmt: skip


def draw_line(axes: Axes, measure: Measure, rows: pd.DataFrame, column: str, **style: object) -> None:
    """A line of scores as readers see them, over a column, with thin bars for the intervals."""
    rows = rows.sort_values(column, kind="stable")
    seen = rows[["mean", "low", "high"]].map(measure.shown)
    ends = seen[["low", "high"]]
    bars = np.abs(np.array([seen["mean"] - ends.min(axis=1), ends.max(axis=1) - seen["mean"]]))
    drawn = axes.errorbar(rows[column], seen["mean"], yerr=bars, elinewidth=0.7, capsize=1.5, **style)  # type: ignore[arg-type]
    for part in (*drawn[1], *drawn[2]):
        part.set_alpha(0.55)


def draw_panel(axes: Axes, panel: Panel, column: str) -> list[End]:
    """All methods' scores over a column of the points, those of a family side by side; hollow: not trained after the
    change. Returns the ends of the lines that can be seen.
    """
    axes.set_title(panel.title)
    if panel.reason:
        say_not_run(axes)
        return []
    ends = []
    lines = lines_of(panel.points)
    families = [family for (family, _), *_ in lines]
    for number, (method, trained, rows) in enumerate(lines):
        style, family = line_style(method), method[0]
        if family == "original" or panel.few[rows.index].any():
            style["linestyle"] = "none"
        if family == "original":
            style["zorder"] = 5
        if not trained:
            style["markerfacecolor"] = "white"
        middle = families.index(family) + (families.count(family) - 1) / 2
        drawn = axes.transData + ScaledTranslation((number - middle) * ASIDE, 0, axes.figure.dpi_scale_trans)
        near = rows[~panel.far[rows.index]].sort_values(column)
        draw_line(axes, panel.measure, near, column, transform=drawn, **style)
        for _, last in near.tail(1).iterrows():
            x, y = last[column], panel.measure.shown(last["mean"])
            if family == "original" and column != "ratio":  # it is no setting of what is shown, but their yardstick
                axes.axhline(y, color=style["color"], linestyle=SERIES[2].dashes, linewidth=0.8)
                x = panel.points[column].max()
            ends.append((panel.name(last), (x, y), style))
    limits = panel.points[["low", "high"]].map(panel.measure.shown)
    for limit in limits:  # of lines that are moved aside the axes know nothing
        axes.update_datalim(np.column_stack([panel.points[column], limits[limit]]))
    axes.autoscale_view()
    show_score(axes, panel, column, panel.name)
    return ends


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
    if any(panel.measure.chosen is NEEDLE.chosen for panel in shown):
        tasks.append("Needles: the tasks that the original has learned.")
    if any(panel.measure is CONTINUATION for panel in shown):
        tasks.append(
            "Perplexity: that of the original on all its windows, times the change on those of the method; intervals "
            "of the change."
        )
    reasons = [f"Not-run: {panel.reason}." for panel in panels if panel.reason]
    bars = ", ".join(dict.fromkeys(panel.measure.interval for panel in panels))
    return [f"Bars: {bars}.", *sizes, *tasks, training, *reasons]


Finish = Callable[[Axes, Panel], list[End] | None]
"""Adds to a panel that shows something; the ends of lines that it adds, if any."""


def draw_panels(name: str, panels: list[Panel], column: str, axis: str, note: str, finish: Finish) -> Figure:
    """A figure of panels, one below the other, with the names of their lines; arguments as of `quality_figure`."""
    names = [2 + len(lines_of(panel.points)) for panel in panels]
    inches = [0.4 if panel.reason else max(1.7, NAME * lines) for panel, lines in zip(panels, names, strict=True)]
    figure, every, _ = grid(
        name, len(panels), 1, lambda _, lines: (WIDTH, 1.5 + 0.6 * lines + sum(inches)),
        gridspec_kw={"height_ratios": inches},
    )  # fmt: skip
    for panel, axes, height in zip(panels, every, inches, strict=True):
        ends = draw_panel(axes, panel, column)
        if not panel.reason:
            axes.set_xlabel(axis)
            name_lines(axes, ends + (finish(axes, panel) or []), height)
    bars: dict[str, dict[str, Line2D]] = {}
    for method, _ in by_method(pd.concat([panel.points for panel in panels])):
        heading, hue = LOOKS[method[0]]
        hue = look_of(method).colour if method[0] == "eviction" else hue
        bars.setdefault(heading, {})[hue] = Line2D([], [], color=hue, linewidth=4)
    bars.pop("", None)
    if len(bars) > 1:
        handles: list[Any] = [tuple(of_family.values()) for of_family in bars.values()]
        figure.legend(handles, bars, handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
            loc="outside upper center", ncols=5, handlelength=1.2, columnspacing=1.5)  # fmt: skip
    few = (
        f"No line joins points of fewer than {FEW} samples."
        if any(panel.few.any() and not panel.reason for panel in panels)
        else ""
    )
    notes = [note, "Points of a family at the same place stand side by side.", few, *notes_of(panels)]
    add_note(figure, " ".join(filter(None, notes)))
    return figure


def quality_figure(
    chosen: Callable[[pd.DataFrame], pd.DataFrame],
    column: str,
    axis: str,
    name: str,
    note: str,
    finish: Finish = lambda axes, panel: None,
) -> Callable[..., Figure]:
    """A figure of all measures of quality, one panel a measure and model, as a function of the measurements there are.

    Args:
        chosen: scores of one model -> those that are shown.
        column: of the scores, for the horizontal axis.
        axis: its label.
        name: of the figure.
        note: what a reader must know beside sizes, training, and the reasons of gaps.
        finish: of each panel that shows something.
    """

    @styled
    def draw(
        compared_hashhop: pd.DataFrame | None = None,
        needle: pd.DataFrame | None = None,
        continuation: pd.DataFrame | None = None,
    ) -> Figure:
        frames = {"compared_hashhop": compared_hashhop, "needle": needle, "continuation": continuation}
        return draw_panels(name, panels_of(frames, chosen), column, axis, note, finish)

    return draw
