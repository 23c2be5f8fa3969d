"""The two pictures of an adapted model: which heads were replaced or what they keep, and how near it came."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from recurformer.render.adaptation import Adaptation, stage
from recurformer.render.style import WIDTH, add_note, save_figure, series, show_heads, styled


def draw(folder: Path, adaptation: Adaptation) -> None:
    """Write quality.png and heads.png to a folder."""
    save_figure(
        price_curve(adaptation) if adaptation.get("budget") else recovery_curve(adaptation), folder / "quality.png"
    )
    save_figure(head_map(adaptation), folder / "heads.png")


@styled
def head_map(adaptation: Adaptation) -> Figure:
    """By a budget, what each head keeps: tokens and bits. Else how recency-aware it is, and which ones are replaced."""
    panels: list[tuple[np.ndarray, str, str | None]]
    if adaptation.get("budget"):
        tokens, each = adaptation["recipe"]["tokens"], adaptation["attention_heads"] // adaptation["kv_heads"]
        windows = np.array(adaptation["windows"], dtype=float)  # NaN keeps all
        kept = np.where(np.isnan(windows), 1, windows / tokens).repeat(each, 1)
        bits = np.array(adaptation["bits"]).repeat(each, 1) / 16
        panels = [(kept, "tokens kept, fraction", None), (bits, "bits kept, of 16, fraction", None)]
        note = f"Left: the window of each head, as a fraction of {tokens:,} tokens. Right: the bits of a number in it."
    else:
        replaced = np.zeros((len(adaptation["heads"]), adaptation["attention_heads"]))
        for layer, heads in enumerate(adaptation["heads"]):
            replaced[layer, heads] = 1
        panels = [
            (np.array(adaptation["ra_i"]), "recency-aware windows, fraction", None),
            (replaced, "replaced", "Greys"),
        ]
        note = (
            "Left: fraction of windows in which the head looks mainly at recent tokens. Right: dark heads are "
            "replaced, by one mixer a layer."
        )
    figure = Figure(figsize=(WIDTH, 0.9 + min(5.0, 0.6 + 0.14 * len(panels[0][0]))), label="Head map")
    places = figure.subplots(1, 2, sharey=True)
    for axes, panel in zip(places, panels, strict=True):
        image = show_heads(axes, *panel)
        if panel[2] is None:
            figure.colorbar(image, ax=axes, shrink=0.8)
    places[0].set_ylabel("layer")
    add_note(figure, f"{note} Layers and heads count from 0.")
    return figure


@styled
def price_curve(adaptation: Adaptation) -> Figure:
    """Estimated divergence over the cache that is kept, the chosen point, and what was measured there."""
    figure = Figure(figsize=(WIDTH * 0.6, 3.0), label="Price")
    axes = figure.subplots()
    fractions, costs = np.array([point for point in adaptation["estimated"] if point[1] > 0]).T
    style, chosen = series(1), fractions == adaptation["budget"]
    axes.plot(fractions, costs, color=style.colour, marker=style.marker, linestyle=style.dashes, label="estimated")
    axes.plot(fractions[chosen], costs[chosen], "o", color=style.colour, markersize=9, fillstyle="none", label="chosen")
    measured = stage(adaptation, "adapted")
    if measured["divergence"] > 0:
        axes.plot(adaptation["budget"], measured["divergence"], "x", color=series(2).colour, label="measured")
    axes.set_xscale("log", base=2)
    # the chosen one always has its number; one so near that their numbers would touch has none
    named = fractions[chosen | (np.abs(np.log2(fractions / adaptation["budget"])) > 0.3)]
    axes.set_xticks(named, [f"{fraction:g}" for fraction in named])
    axes.set_yscale("log")
    axes.set_xlabel(f"cache at {adaptation['recipe']['tokens']:,} tokens, fraction of the original's in 16 bits")
    axes.set_ylabel("divergence, nats a token")
    axes.legend()
    return figure


@styled
def recovery_curve(adaptation: Adaptation) -> Figure:
    """Divergence from the original and perplexity on held-out windows, over the tokens seen."""
    figure = Figure(figsize=(WIDTH, 3.0), label="Recovery")
    panels = figure.subplots(1, 2)
    rows = [row for row in adaptation["stages"] if row["stage"] != "original"]
    tokens = np.array([row["tokens"] for row in rows]) / 1000
    for axes, name in zip(panels, ("divergence", "perplexity"), strict=True):
        values = np.array([row[name] for row in rows])
        low, high = np.array([row[f"{name}_interval"] for row in rows]).T
        errors = values - low, high - values
        axes.errorbar(tokens, values, errors, **series(1).line, capsize=3, label="held-out windows")
        axes.set_yscale("log")
        axes.set_xlabel("tokens seen, thousands")
    losses = adaptation["trainings"]["distil"]
    if losses:
        last, batch = rows[-1]["tokens"], adaptation["recipe"]["batch_size"] * adaptation["recipe"]["tokens"]
        seen = [(last - batch * (len(losses) - row["step"])) / 1000 for row in losses]
        panels[0].plot(seen, [row["loss"] for row in losses], color=series(3).colour, alpha=0.6, linewidth=0.8,
                       label="distillation, each step")  # fmt: skip
    panels[0].set_ylabel("KL to the original, nats a token")
    panels[1].set_ylabel("perplexity")
    panels[1].axhline(stage(adaptation, "original")["perplexity"], color=series(0).colour, label="original")
    for axes in panels:
        axes.legend()
    add_note(figure, "Points: replaced, calibrated, after transfer (if any), adapted. "
             "Bars: 95 % intervals over windows.")  # fmt: skip
    return figure
