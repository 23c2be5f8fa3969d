"""Needles in a haystack: passkeys found by depth and length, one heat map a method."""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from recurformer.paper import label
from recurformer.render.ablations import NEEDLE, PASSKEY, identified, method_label, scores, why_not_run
from recurformer.render.figures.ablations.length import at_common_setting
from recurformer.render.figures.ablations.looks import Method, in_order, is_ours, say_not_run
from recurformer.render.measurements import models_in_order, require_values
from recurformer.render.style import WIDTH, add_note, styled

PANELS_IN_A_ROW = 5
DARK = 0.6
"""Below this value a cell is dark, and its number white."""


def found_share(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of passkeys found: rows are depths, columns lengths."""
    sums = rows.groupby(["depth", "length"])[["correct", "queries"]].sum()
    return (sums["correct"] / sums["queries"]).unstack("length").sort_index()


def _draw(axes: Axes, share: pd.DataFrame) -> AxesImage:
    axes.grid(False)
    image = axes.imshow(np.ma.masked_invalid(share.to_numpy()), vmin=0, vmax=1, cmap="cividis", aspect="auto")
    for (depth, length), value in np.ndenumerate(share.to_numpy()):
        if np.isfinite(value):
            axes.text(length, depth, f"{100 * value:.0f}", ha="center", va="center", fontsize=6.5,
                color="white" if value < DARK else "black")  # fmt: skip
    axes.set_xticks(range(share.shape[1]), [f"{length:,}" for length in share.columns], rotation=60, fontsize=7)
    axes.set_yticks(range(share.shape[0]), [f"{depth:.0%}" for depth in share.index], fontsize=7)
    return image


def _title(method: Method, rows: pd.DataFrame) -> str:
    name = method_label(*method).replace(" (", "\n(")
    return f"{name}\ncache {rows['ratio'].mean():.2f}"


def _maps(passkeys: pd.DataFrame) -> Iterator[tuple[Method, pd.DataFrame]]:
    compared = at_common_setting(passkeys)
    for method in in_order(set(zip(compared["family"], compared["method"], strict=True))):
        yield method, compared[(compared["family"] == method[0]) & (compared["method"] == method[1])]


@styled
def ablation_needle(needle: pd.DataFrame) -> Figure:
    """Share of passkeys found by depth (downwards) and length, one heat map a method at about the same cache.

    Args:
        needle: identity, task, length (tokens), depth (share of the text before it), sample, correct, queries.

    Raises:
        ValueError: missing columns, no rows, or none of a passkey.
    """
    rows = identified(needle, "needle")
    require_values(rows, "needle", "task", [PASSKEY])
    passkeys = rows[rows["task"] == PASSKEY]
    points = scores(passkeys, NEEDLE)
    reasons = [why_not_run(points[points["model"] == model], NEEDLE) for model in models_in_order(passkeys)]
    shown = [model for model, reason in zip(models_in_order(passkeys), reasons, strict=True) if not reason]
    maps = [(model, *found) for model in shown for found in _maps(passkeys[passkeys["model"] == model])]
    columns = min(max(len(maps), 1), PANELS_IN_A_ROW)
    lines = max(math.ceil(len(maps) / columns), 1)
    figure = Figure(figsize=(WIDTH, 1.1 + 1.65 * lines), label="Needles in a haystack")
    every = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    image = None
    for (model, method, found), axes in zip(maps, every, strict=False):
        image = _draw(axes, found_share(found))
        prefix = f"{label(model)}\n" if len(shown) > 1 else ""
        axes.set_title(prefix + _title(method, found), fontsize=7.5, weight="bold" if is_ours(method) else "normal")
    for axes in every[len(maps) :]:
        axes.set_axis_off()
    for axes in every[: len(maps) : columns]:
        axes.set_ylabel("depth", fontsize=8)
    for axes in every[max(len(maps) - columns, 0) : len(maps)]:
        axes.set_xlabel("tokens", fontsize=8)
    if image is None:
        every[0].set_axis_on()
        say_not_run(every[0])
    else:
        figure.colorbar(image, ax=every, shrink=0.7).set_label("passkeys found")
    add_note(figure, _note(shown, passkeys, [reason for reason in reasons if reason]))
    return figure


def _note(shown: list[str], passkeys: pd.DataFrame, reasons: list[str]) -> str:
    said = [f"{reason[0].upper()}{reason[1:]}." for reason in reasons]
    if shown:
        sizes = passkeys.groupby(["model", "family", "method", "setting", "by", "trained", "depth", "length"]).size()
        said = [
            f"{', '.join(map(label, shown))}. Numbers: per cent; passkeys a cell: "
            f"{sizes.min():,} or more. Each method at the setting nearest to half of the cache or of the heads; cache: "
            "what it held, share of the original's. Trained where the method was trained, else as it is.",
            *said,
        ]
    return " ".join(said)
