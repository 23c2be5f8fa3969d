"""Replacements of the heads at equal bytes: quality over the bytes that do not grow with the text."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recurformer.paper import label
from recurformer.render.measurements import models_in_order, require
from recurformer.render.recovery import MIXERS, at_equal_bytes, last_points, points, state_bytes, untrained
from recurformer.render.style import WIDTH, Series, add_note, series, styled

PANELS = {"divergence": "KL to the original (nats a token)", "perplexity": "perplexity"}


def compared(found: pd.DataFrame) -> pd.DataFrame:
    """The points of the arms that are compared at equal bytes, of equally many tokens in all, with `state` (KiB)."""
    arms = found[at_equal_bytes(found)]
    return arms.assign(state=state_bytes(arms) / 1024)


def _looks(arms: pd.DataFrame) -> dict[str, Series]:
    return {mixer: series(place) for place, mixer in enumerate(MIXERS, 1) if mixer in set(arms["mixer"])}


def _draw_quality(axes: Axes, arms: pd.DataFrame, quantity: str) -> None:
    """One mark an arm; sizes of the same mixer are joined."""
    for mixer, look in _looks(arms).items():
        rows = arms[arms["mixer"] == mixer]
        for kept, filled in ((rows[rows["tokens"] == 0], False), (last_points(rows), True)):
            mean = kept.groupby("state")[[quantity, f"{quantity}_low", f"{quantity}_high"]].mean()
            error = [mean[quantity] - mean[f"{quantity}_low"], mean[f"{quantity}_high"] - mean[quantity]]
            axes.errorbar(mean.index, mean[quantity], yerr=error, color=look.colour, marker=look.marker,
                          markerfacecolor=look.colour if filled else "none", linestyle=look.dashes if filled else ":",
                          linewidth=1, capsize=2, label=MIXERS[mixer] if filled else None)  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("bytes that do not grow with the text (KiB)")
    axes.set_ylabel(PANELS[quantity])


def _draw_layers(axes: Axes, errors: pd.DataFrame, looks: dict[str, Series]) -> None:
    for mixer, look in looks.items():
        mean = errors[errors["mixer"] == mixer].groupby("layer")["after"].mean()
        axes.plot(mean.index, mean, color=look.colour, linestyle=look.dashes, marker=look.marker, markersize=3)
    axes.set_ylim(0, 1)
    axes.set_xlabel("layer")
    axes.set_ylabel("share that the closed form misses")


@styled
def equal_bytes(recovery: pd.DataFrame, layer_errors: pd.DataFrame) -> Figure:
    """Quality over bytes held, hollow before any training, filled after the same tokens; and the closed form's error.

    Args:
        recovery: as of the figure `recovery`; the arms at equal bytes are shown, of the first model.
        layer_errors: model, arm, mixer, beta, seed, layer, after (relative squared error on held-out windows), of the
            same arms; those without a closed form have none.

    Raises:
        ValueError: missing columns, no rows, no such arm or no original.
    """
    found = points(recovery)
    model = models_in_order(found)[0]
    found = found[found["model"] == model]
    arms = compared(found)
    if arms.empty:
        raise ValueError("recovery measurements have no arms at equal bytes: nothing to compare")
    errors = require(layer_errors, "layer_errors")
    figure = Figure(figsize=(1.45 * WIDTH, 3.6), label="Equal bytes")
    panels = figure.subplots(1, 3)
    for axes, quantity in zip(panels, PANELS, strict=False):
        _draw_quality(axes, arms, quantity)
    original = float(untrained(found, model)["perplexity"])
    panels[1].axhline(original, color=series(0).colour, linewidth=1, label="original")
    _draw_layers(panels[2], errors[errors["model"] == model], _looks(arms))
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5)
    ends = last_points(arms)
    add_note(
        figure,
        f"{label(model)}, β = {ends['beta'].iloc[0]:g}, the same heads. Hollow: before training. Filled: after "
        f"{ends['tokens'].max():,} tokens. Bars: 95 % interval over {ends['windows'].min()} windows. Float32. Right: "
        "share of the replaced heads' squared output, in the residual stream, that the closed form does not predict.",
    )  # fmt: skip
    return figure
