"""One look for all figures, their heat maps, and files that are the same bytes for the same input."""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

STYLE_FILE = Path(__file__).with_name("recurformer.mplstyle")
WIDTH = 7.2
"""Width of a figure in inches: a page's text width."""
LEFT_OUT = {".svg": ("Date", "Creator"), ".png": ("Software",)}
"""Format of a figure -> what its file does not say of itself."""


@dataclass(frozen=True)
class Series:
    """How one of several lines is drawn: it differs from the others in hue, in lightness, in dashes and in marker."""

    colour: str
    dashes: tuple[float, tuple[float, ...]]
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of a line that is drawn so."""
        return {"color": self.colour, "linestyle": self.dashes, "marker": self.marker}


SERIES = (
    Series("#000000", (0, ()), "o"),
    Series("#A63C00", (0, (5, 1.5)), "s"),
    Series("#12306F", (0, (1.5, 1)), "^"),
    Series("#4FA8DC", (0, (6, 1.5, 1.5, 1.5)), "D"),
    Series("#0E8F6C", (0, (3, 1, 1, 1, 1, 1)), "v"),
    Series("#F0B93A", (0, (8, 2)), "P"),
)
"""The palette of Okabe and Ito (2008), darkened or lightened until all differ in grey. The first is the
original model's, wherever there is one."""


def series(index: int) -> Series:
    """The style of the series number `index`; after the last, the first again."""
    return SERIES[index % len(SERIES)]


styled = matplotlib.style.context(STYLE_FILE, after_reset=True)
"""Decorator of a function that draws or writes a figure: it runs under the one style of all figures. The caller's
matplotlib settings play no part and stay."""


def grid(
    name: str, count: int, in_a_row: int, size: Callable[[int, int], tuple[float, float]], **shared: Any
) -> tuple[Figure, list[Axes], int]:
    """A figure of several panels of one kind, at least one.

    Args:
        name: of the figure.
        count: of the panels.
        in_a_row: at most so many stand side by side.
        size: columns, lines -> width and height in inches.
        shared: arguments of `Figure.subplots` about shared axes.

    Returns:
        The figure, the panels line by line, and the number of columns; what is left of the last line is empty.
    """
    count = max(count, 1)
    columns = min(count, in_a_row)
    lines = math.ceil(count / columns)
    figure = Figure(figsize=size(columns, lines), label=name)
    panels = list(figure.subplots(lines, columns, squeeze=False, **shared).ravel())
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels[:count], columns


def legend_above(figure: Figure, panels: Iterable[Axes], ncols: int) -> None:
    """One legend for all panels; what has the same name in several of them is listed once."""
    handles = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=ncols)


@styled
def save_figure(figure: Figure, path: str | Path, runs: Sequence[str] = ()) -> None:
    """Write a figure as SVG (text as text) or PNG (150 dpi), as the suffix says, without date or version: same figure,
    same bytes. Its metadata names the `runs` behind it.

    Raises:
        ValueError: another suffix.
    """
    path = Path(path)
    about = {"Title": str(figure.get_label()), "Source": f"runs {' '.join(runs)}" if runs else ""}
    if path.suffix not in LEFT_OUT:
        named = path.suffix or "without a suffix"
        raise ValueError(f"{path}: a figure is written as {', '.join(LEFT_OUT)}, not {named}")
    metadata = dict.fromkeys(LEFT_OUT[path.suffix]) | {key: text for key, text in about.items() if text}
    figure.savefig(path, metadata=metadata)


def add_note(figure: Figure, text: str) -> None:
    """Small print below the axes, and below earlier notes, broken into lines: rules and numbers that a reader needs
    beside the picture.
    """
    characters = int(17 * figure.get_figwidth())  # 17 an inch
    lines = [line for paragraph in text.splitlines() for line in textwrap.wrap(paragraph, characters)]
    figure.supxlabel("\n".join([*figure.get_supxlabel().splitlines(), *lines]), fontsize=7.5, color="0.25", x=0.01,
        ha="left")  # fmt: skip


def causal_matrix(rows: pd.DataFrame, column: str) -> np.ndarray:
    """The matrix (queries, keys) of the values in `column`, NaN where there is no row.

    Raises:
        ValueError: two rows for one query and key.
    """
    if rows.duplicated(["query", "key"]).any():
        raise ValueError(f"{column}: several rows for one query and key; a heat map shows one value for each")
    size = int(max(rows["query"].max(), rows["key"].max())) + 1
    matrix = np.full((size, size), np.nan)
    matrix[rows["query"].to_numpy(dtype=int), rows["key"].to_numpy(dtype=int)] = rows[column].to_numpy(dtype=float)
    return matrix


def log_norm(*matrices: np.ndarray) -> LogNorm:
    """A logarithmic colour scale of eight powers of ten down from the largest value of all matrices; what is smaller
    takes its lowest colour. Where a first token gets nearly all attention, the others' weights are that small.
    """
    highest = max(float(np.nanmax(matrix)) for matrix in matrices)
    return LogNorm(highest * 10.0**-8, highest, clip=True)


def show_causal(axes: Axes, matrix: np.ndarray, norm: LogNorm, first: int = 0) -> AxesImage:
    """Draw a causal matrix, queries downwards and keys to the right; its first row and column are number `first`."""
    axes.grid(False)
    last = first + len(matrix) - 0.5
    image = axes.imshow(
        np.ma.masked_invalid(matrix), norm=norm, extent=(first - 0.5, last, last, first - 0.5), aspect="equal"
    )
    axes.spines[["top", "right"]].set_visible(True)
    axes.set_xlabel("key token")
    axes.set_ylabel("query token")
    return image


def show_heads(axes: Axes, matrix: np.ndarray, title: str, cmap: str | None = None) -> AxesImage:
    """Draw a value from 0 to 1 of every head, NaN for no head: layers downwards, heads to the right."""
    axes.grid(False)
    image = axes.imshow(np.ma.masked_invalid(matrix), vmin=0, vmax=1, aspect="auto", cmap=cmap)
    axes.set_title(title)
    axes.set_xlabel("head")
    axes.locator_params(integer=True)
    return image


def show_fractions(
    axes: Axes, fractions: pd.DataFrame, words: pd.DataFrame, size: float, top: float = 1, pale: bool = False
) -> AxesImage:
    """Draw a table of fractions, NaN where there is none, each with a word of so many points, which is white where the
    cell is dark. `top` is the fraction of the brightest colour.
    """
    axes.grid(False)
    image = axes.imshow(np.ma.masked_invalid(fractions.to_numpy()), vmin=0, vmax=top, cmap="cividis", aspect="auto")
    image.set_alpha(0.3 if pale else 1.0)
    for (row, column), fraction in np.ndenumerate(fractions.to_numpy()):
        if np.isfinite(fraction):
            colour, word = "white" if fraction < 0.55 * top and not pale else "black", str(words.iloc[row, column])
            axes.text(column, row, word, ha="center", va="center", fontsize=size, color=colour)
    return image
