"""What stands in the place of the heads, at equal bytes: quality over the bytes that do not grow with the text."""

import pandas as pd
from matplotlib.figure import Figure

from recurformer.paper import label
from recurformer.render.measurements import models_in_order
from recurformer.render.recovery import MIXERS, at_equal_bytes, last_points, points, state_bytes, untrained
from recurformer.render.style import WIDTH, add_note, series, styled

PANELS = {"divergence": "KL to the original (nats a token)", "perplexity": "perplexity"}


def compared(found: pd.DataFrame) -> pd.DataFrame:
    """The points of the arms that are compared at equal bytes, of equally many tokens in all, with `state` (KiB)."""
    arms = found[at_equal_bytes(found)]
    return arms.assign(state=state_bytes(arms) / 1024)


@styled
def equal_bytes(recovery: pd.DataFrame) -> Figure:
    """Quality over bytes held, one mark a mixer: hollow before any training, filled after the same tokens.

    Args:
        recovery: as of the figure `recovery`; the arms at equal bytes are shown, of the first model.

    Raises:
        ValueError: missing columns, no rows, no such arm or no original.
    """
    found = points(recovery)
    model = models_in_order(found)[0]
    found = found[found["model"] == model]
    arms = compared(found)
    if arms.empty:
        raise ValueError("recovery measurements have no arms at equal bytes: nothing to compare")
    original = untrained(found, model)
    figure = Figure(figsize=(WIDTH, 3.6), label="Equal bytes")
    panels = figure.subplots(1, 2)
    known = [mixer for mixer in MIXERS if mixer in set(arms["mixer"])]
    for axes, quantity in zip(panels, PANELS, strict=True):
        for place, mixer in enumerate(known):
            look, rows = series(place + 1), arms[arms["mixer"] == mixer]
            for kept, fill, name in (
                (rows[rows["tokens"] == 0], "none", None),
                (last_points(rows), look.colour, MIXERS[mixer]),
            ):
                error = [kept[quantity] - kept[f"{quantity}_low"], kept[f"{quantity}_high"] - kept[quantity]]
                axes.errorbar(kept["state"], kept[quantity], yerr=error, color=look.colour, marker=look.marker,
                              markerfacecolor=fill, linestyle="none", capsize=2, label=name)  # fmt: skip
        axes.set_yscale("log")
        axes.set_xlabel("bytes that do not grow with the text (KiB)")
        axes.set_ylabel(PANELS[quantity])
    panels[1].axhline(float(original["perplexity"]), color=series(0).colour, linewidth=1, label="original")
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    ends = last_points(arms)
    add_note(
        figure,
        f"{label(model)}, β = {ends['beta'].iloc[0]:g}, the same heads. Hollow: nothing learnt. Filled: after "
        f"{ends['tokens'].max():,} tokens. Bars: 95 % interval over {ends['windows'].min()} windows. Float32.",
    )  # fmt: skip
    return figure
