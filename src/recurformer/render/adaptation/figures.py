"""The pictures of an adaptation: the replaced heads, and the recovery."""

import numpy as np
from matplotlib.figure import Figure

from recurformer.render.adaptation.summary import Found, stage
from recurformer.render.style import WIDTH, add_note, series, styled


@styled
def head_map(found: Found) -> Figure:
    """How recency-aware each head is (left) and which ones were replaced (right); layers downwards."""
    shares = np.array(found["ra_i"])
    replaced = np.zeros_like(shares)
    for layer, heads in enumerate(found["heads"]):
        replaced[layer, heads] = 1
    figure = Figure(figsize=(WIDTH, 0.9 + min(5.0, 0.6 + 0.14 * len(shares))), label="Head map")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, matrix, title in ((left, shares, "recency-aware windows, share"), (right, replaced, "replaced heads")):
        axes.grid(False)
        image = axes.imshow(matrix, vmin=0, vmax=1, aspect="auto", cmap=None if axes is left else "Greys")
        axes.set_title(title)
        axes.set_xlabel("head")
        axes.locator_params(integer=True)
        if axes is left:
            figure.colorbar(image, ax=axes, shrink=0.8)
    left.set_ylabel("layer")
    add_note(figure, "Left: share of windows in which the head looks mainly at recent tokens. Right: dark heads are "
             "replaced, by one mixer a layer. Layers and heads count from 0.")  # fmt: skip
    return figure


@styled
def recovery_curve(found: Found) -> Figure:
    """Divergence from the original and perplexity on held-out windows, over the tokens seen."""
    figure = Figure(figsize=(WIDTH, 3.0), label="Recovery")
    panels = figure.subplots(1, 2)
    rows = [row for row in found["stages"] if row["stage"] != "original"]
    tokens = np.array([row["tokens"] for row in rows]) / 1000
    for axes, name in zip(panels, ("divergence", "perplexity"), strict=True):
        values = np.array([row[name] for row in rows])
        low, high = np.array([row[f"{name}_interval"] for row in rows]).T
        style = series(1)
        axes.errorbar(
            tokens, values, (values - low, high - values), color=style.colour, marker=style.marker,
            linestyle=style.dashes, capsize=3, label="held-out windows",
        )  # fmt: skip
        axes.set_yscale("log")
        axes.set_xlabel("tokens seen, thousands")
    losses = found["trainings"]["distil"]
    if losses:
        last, batch = rows[-1]["tokens"], found["recipe"]["batch_size"] * found["recipe"]["tokens"]
        seen = [(last - batch * (len(losses) - row["step"])) / 1000 for row in losses]
        panels[0].plot(seen, [row["loss"] for row in losses], color=series(3).colour, alpha=0.6, linewidth=0.8,
                       label="distillation, each step")  # fmt: skip
    panels[0].set_ylabel("KL to the original, nats a token")
    panels[1].set_ylabel("perplexity")
    panels[1].axhline(stage(found, "original")["perplexity"], color=series(0).colour, label="original")
    for axes in panels:
        axes.legend()
    add_note(figure, "Points: replaced, calibrated, after transfer (if any), adapted. "
             "Bars: 95 % intervals over windows.")  # fmt: skip
    return figure
