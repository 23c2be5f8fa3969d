"""Needles in a haystack: passkeys found by depth and length, one heat map a method."""

import textwrap

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from recurformer.paper import label
from recurformer.render.figures.ablations.looks import by_method, is_ours, say_not_run
from recurformer.render.figures.matrix import show_shares
from recurformer.render.style import WIDTH, add_note, grid, styled
from recurformer.results.frames import by_model, require_values
from recurformer.results.scores import (
    NEEDLE,
    PASSKEY,
    THING,
    as_paper_does,
    identified,
    method_label,
    scores,
    why_not_run,
)
from recurformer.study.ablations import COMMON_BETA

PANELS_IN_A_ROW = 5
DARK = 0.6
"""Below this value a cell is dark, and its number white."""


def _at_common_setting(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of every method at its setting nearest to `COMMON_BETA`, trained where it was trained, RA-I only; the
    original as it came and trained.
    """
    paper = as_paper_does(rows)
    distance = (paper["setting"] - COMMON_BETA).abs()
    nearest = distance.groupby([paper[key] for key in ("model", "family", "method")]).transform("min")
    found = paper[distance == nearest]
    first = found["setting"].groupby([found[key] for key in ("model", "family", "method")]).transform("min")
    return found[found["setting"] == first]


def _draw(axes: Axes, rows: pd.DataFrame) -> AxesImage:
    """Share of passkeys found: depths downwards, lengths to the right."""
    sums = rows.groupby(["depth", "length"])[["correct", "queries"]].sum()
    share = (sums["correct"] / sums["queries"]).unstack("length").sort_index()
    image = show_shares(axes, share, share < DARK, size=6.5)
    axes.set_xticks(range(share.shape[1]), [f"{length:,}" for length in share.columns], rotation=60, fontsize=7)
    axes.set_yticks(range(share.shape[0]), [f"{depth:.0%}" for depth in share.index], fontsize=7)
    return image


@styled
def ablation_needle(needle: pd.DataFrame) -> Figure:
    """Share of passkeys found by depth (downwards) and length, one heat map a method at about the same cache.

    Raises:
        ValueError: no row of a passkey.
    """
    rows = identified(needle, "needle")
    require_values(rows, "needle", "task", [PASSKEY])
    passkeys = rows[rows["task"] == PASSKEY]
    reasons = {model: why_not_run(points, NEEDLE) for model, points in by_model(scores(passkeys, NEEDLE))}
    shown = [model for model, reason in reasons.items() if not reason]
    maps = [
        (model, *found)
        for model, of_model in by_model(passkeys)
        for found in by_method(_at_common_setting(of_model))
        if model in shown
    ]
    figure, every, columns = grid(
        "Needles in a haystack", len(maps), PANELS_IN_A_ROW, lambda _, lines: (WIDTH, 1.1 + 1.65 * lines), sharey=True
    )
    notes = []
    for (model, method, found), axes in zip(maps, every, strict=False):
        image = _draw(axes, found)
        name = "\n".join(textwrap.wrap(method_label(*method), 16))
        title = f"{name}\ncache {found['ratio'].mean():.2f}"
        axes.set_title(
            f"{label(model)}\n{title}" if len(shown) > 1 else title,
            fontsize=7.5, weight="bold" if is_ours(method) else "normal",
        )  # fmt: skip
    for axes in every[: len(maps) : columns]:
        axes.set_ylabel("depth", fontsize=8)
    for axes in every[max(len(maps) - columns, 0) : len(maps)]:
        axes.set_xlabel("tokens", fontsize=8)
    if maps:
        figure.colorbar(image, ax=figure.axes, shrink=0.7).set_label("passkeys found")
        sizes = passkeys.groupby([*THING, "depth", "length"]).size()
        notes.append(
            f"{', '.join(map(label, shown))}. Numbers: per cent; passkeys a cell: "
            f"{sizes.min():,} or more. Each method at the setting nearest to half of the cache or of the heads; cache: "
            "held cache as a share of the original's. A model is trained if its method trains."
        )
    else:
        say_not_run(every[0])
    notes += [f"Not-run: {reason}." for reason in reasons.values() if reason]
    add_note(figure, " ".join(notes))
    return figure
