"""How methods look in the figures of the ablations: a family shares a hue, its methods differ in marker and dashes."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from recurformer.render.style import SERIES, Series
from recurformer.results.frames import groups
from recurformer.results.scores import METHODS, method_label

COLOURS = {
    "original": SERIES[0].colour,
    "mixer": SERIES[3].colour,
    "recovered": SERIES[2].colour,
    "layers": SERIES[4].colour,
    "pooled": SERIES[5].colour,
    "eviction": SERIES[1].colour,
}
OURS = COLOURS["recovered"]
"""RecurFormer itself, heads replaced by Mamba, and what recovered by other recipes."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
DASHES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0, ()), (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)),
)  # fmt: skip
HEADINGS = {
    "original": "",
    "mixer": "heads replaced",
    "recovered": "and recovered otherwise",
    "layers": "layers replaced",
    "pooled": "fewer KV heads",
    "eviction": "tokens evicted",
}
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
    colour = OURS if is_ours(method) else COLOURS[family]
    return nth_look(colour, known.index(name) if name in known else len(known))


def in_order(methods: set[Method]) -> list[Method]:
    """Methods as they are drawn and listed: family by family."""
    known = [(family, name) for family, names in METHODS.items() for name in names]
    return [method for method in known if method in methods] + sorted(methods - set(known))


def by_method(points: pd.DataFrame) -> list[tuple[Method, pd.DataFrame]]:
    """The rows of each method, in the order in which methods are drawn and listed."""
    found = dict(groups(points, ["family", "method"]))
    return [(method, found[method]) for method in in_order(set(found))]


def line_style(method: Method) -> dict[str, Any]:
    """Arguments of a line of a method: RecurFormer's stands out by its width, below the others, which it would hide."""
    look = look_of(method)
    width, size, order = (2.2, 7, 2) if is_ours(method) else (1.1, 4.5, 3)
    return {
        "color": look.colour, "linestyle": look.dashes, "marker": look.marker, "linewidth": width, "markersize": size,
        "zorder": order,
    }  # fmt: skip


def legend_beside(figure: Figure, handles: list[Line2D]) -> Legend:
    """A legend to the right of the axes."""
    return figure.legend(handles=handles, loc="outside right center", fontsize=7.5, handlelength=2.6)


def add_methods_legend(figure: Figure, methods: set[Method], extra: tuple[Line2D, ...] = ()) -> None:
    """A legend of methods, family by family."""
    handles: list[Line2D] = []
    for family, heading in HEADINGS.items():
        members = [method for method in in_order(methods) if method[0] == family]
        if members and heading:
            handles.append(Line2D([], [], linestyle="none", label=heading))
        handles += [Line2D([], [], label=method_label(*method), **line_style(method)) for method in members]
    for text in legend_beside(figure, [*handles, *extra]).get_texts():
        if text.get_text() in HEADINGS.values():
            text.set_fontweight("bold")


def say_not_run(axes: Axes) -> None:
    """The word that stands in a panel which shows nothing."""
    axes.text(0.5, 0.5, "not-run", transform=axes.transAxes, ha="center", va="center")
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks([])
