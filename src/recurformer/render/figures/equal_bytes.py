"""Replacements of the heads at equal bytes: quality over the bytes that do not grow with the text."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recurformer.paper import label
from recurformer.render.style import WIDTH, Series, add_note, legend_above, series, styled
from recurformer.results.frames import by_model, require
from recurformer.results.learned import (
    RECOVERED,
    RECOVERED_BY,
    at_equal_bytes,
    last_points,
    recovery_points,
    state_bytes,
    untrained,
)


def _draw_quality(axes: Axes, arms: pd.DataFrame, quantity: str, looks: dict[str, Series]) -> None:
    """One mark an arm; sizes of the same mixer are joined."""
    for mixer, look in looks.items():
        rows = arms[arms["mixer"] == mixer]
        for kept, filled in ((rows[rows["tokens"] == 0], False), (last_points(rows), True)):
            mean = kept.groupby("state")[[quantity, f"{quantity}_low", f"{quantity}_high"]].mean()
            error = [mean[quantity] - mean[f"{quantity}_low"], mean[f"{quantity}_high"] - mean[quantity]]
            axes.errorbar(mean.index, mean[quantity], yerr=error, color=look.colour, marker=look.marker,
                          markerfacecolor=look.colour if filled else "none", linestyle=look.dashes if filled else ":",
                          linewidth=1, capsize=2, label=RECOVERED_BY[mixer] if filled else None)  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("bytes that do not grow with the text (KiB)")
    axes.set_ylabel(RECOVERED[quantity])


@styled
def equal_bytes(recovery: pd.DataFrame, layer_errors: pd.DataFrame) -> Figure:
    """Quality over bytes held, hollow before any training, filled after the same tokens; and the closed form's error.

    Of several models the first is shown. Arms without a closed form have no error.

    Raises:
        ValueError: no arm at equal bytes or no original.
    """
    model, found = by_model(recovery_points(recovery))[0]
    arms = found[at_equal_bytes(found)]
    if arms.empty:
        raise ValueError("recovery measurements have no arms at equal bytes: nothing to compare")
    arms = arms.assign(state=state_bytes(arms) / 1024)
    errors = require(layer_errors, "layer_errors")
    looks = {mixer: series(place) for place, mixer in enumerate(RECOVERED_BY, 1) if mixer in set(arms["mixer"])}
    figure = Figure(figsize=(1.45 * WIDTH, 3.6), label="Equal bytes")
    panels = figure.subplots(1, 3)
    for axes, quantity in zip(panels, RECOVERED, strict=False):
        _draw_quality(axes, arms, quantity, looks)
    original = float(untrained(found, model)["perplexity"])
    panels[1].axhline(original, color=series(0).colour, linewidth=1, label="original")
    for mixer, look in looks.items():
        chosen = errors[(errors["model"] == model) & (errors["mixer"] == mixer)]
        mean = chosen.groupby("layer")["after"].mean()
        panels[2].plot(mean.index, mean, color=look.colour, linestyle=look.dashes, marker=look.marker, markersize=3)
    panels[2].set_ylim(0, 1)
    panels[2].set_xlabel("layer")
    panels[2].set_ylabel("share that the closed form misses")
    legend_above(figure, panels[1:2], ncols=5)
    ends = last_points(arms)
    add_note(
        figure,
        f"{label(model)}, β = {ends['beta'].iloc[0]:g}, the same heads. Hollow: before training. Filled: after "
        f"{ends['tokens'].max():,} tokens. Bars: 95 % interval over {ends['windows'].min()} windows. Float32. Right: "
        "share of the replaced heads' squared output, in the residual stream, that the closed form does not predict.",
    )  # fmt: skip
    return figure
