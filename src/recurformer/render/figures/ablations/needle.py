"""Needles in a haystack: passkeys found by depth and length, one heat map a method."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from recurformer.paper import label
from recurformer.render.ablations import NEEDLE, PASSKEY, identified, method_label, scores, why_not_run
from recurformer.render.figures.ablations.length import at_common_setting
from recurformer.render.figures.ablations.looks import Method, by_method, is_ours, say_not_run, sentence
from recurformer.render.figures.matrix import show_shares
from recurformer.render.measurements import models_in_order, require_values
from recurformer.render.style import WIDTH, add_note, grid, styled

PANELS_IN_A_ROW = 5
DARK = 0.6
"""Below this value a cell is dark, and its number white."""


def found_share(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of passkeys found: rows are depths, columns lengths."""
    sums = rows.groupby(["depth", "length"])[["correct", "queries"]].sum()
    return (sums["correct"] / sums["queries"]).unstack("length").sort_index()


def _draw(axes: Axes, share: pd.DataFrame) -> AxesImage:
    image = show_shares(axes, share, share < DARK, size=6.5)
    axes.set_xticks(range(share.shape[1]), [f"{length:,}" for length in share.columns], rotation=60, fontsize=7)
    axes.set_yticks(range(share.shape[0]), [f"{depth:.0%}" for depth in share.index], fontsize=7)
    return image


def _title(method: Method, rows: pd.DataFrame) -> str:
    name = method_label(*method).replace(" (", "\n(")
    return f"{name}\ncache {rows['ratio'].mean():.2f}"


@styled
def ablation_needle(needle: pd.DataFrame) -> Figure:
    """Share of passkeys found by depth (downwards) and length, one heat map a method at about the same cache.

    Raises:
        ValueError: no row of a passkey.
    """
    rows = identified(needle, "needle")
    require_values(rows, "needle", "task", [PASSKEY])
    passkeys = rows[rows["task"] == PASSKEY]
    points = scores(passkeys, NEEDLE)
    models = models_in_order(passkeys)
    reasons = {model: why_not_run(points[points["model"] == model], NEEDLE) for model in models}
    shown = [model for model in models if not reasons[model]]
    maps = [
        (model, *found)
        for model in shown
        for found in by_method(at_common_setting(passkeys[passkeys["model"] == model]))
    ]
    figure, every, columns = grid(
        "Needles in a haystack", len(maps), PANELS_IN_A_ROW, lambda _, lines: (WIDTH, 1.1 + 1.65 * lines), sharey=True
    )
    if not maps:
        say_not_run(every[0])
    for (model, method, found), axes in zip(maps, every, strict=False):
        image = _draw(axes, found_share(found))
        prefix = f"{label(model)}\n" if len(shown) > 1 else ""
        axes.set_title(prefix + _title(method, found), fontsize=7.5, weight="bold" if is_ours(method) else "normal")
    if maps:
        figure.colorbar(image, ax=figure.axes, shrink=0.7).set_label("passkeys found")
    for axes in every[: len(maps) : columns]:
        axes.set_ylabel("depth", fontsize=8)
    for axes in every[max(len(maps) - columns, 0) : len(maps)]:
        axes.set_xlabel("tokens", fontsize=8)
    add_note(figure, _note(shown, passkeys, list(filter(None, reasons.values()))))
    return figure


def _note(shown: list[str], passkeys: pd.DataFrame, reasons: list[str]) -> str:
    said = [sentence(reason) for reason in reasons]
    if shown:
        sizes = passkeys.groupby(["model", "family", "method", "setting", "by", "trained", "depth", "length"]).size()
        said = [
            f"{', '.join(map(label, shown))}. Numbers: per cent; passkeys a cell: "
            f"{sizes.min():,} or more. Each method at the setting nearest to half of the cache or of the heads; cache: "
            "held cache as a share of the original's. A model is trained if its method trains.",
            *said,
        ]
    return " ".join(said)
