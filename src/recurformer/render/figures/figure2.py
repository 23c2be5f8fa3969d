"""Figure 2: a sink head's value norms, attention weights and contributions."""

import pandas as pd
from matplotlib.figure import Figure

from recurformer.paper import label
from recurformer.render.figures.matrix import causal_matrix, log_norm, show_causal
from recurformer.render.style import WIDTH, add_note, series, styled
from recurformer.results.frames import by_model, groups, require, require_values

QUANTITIES = ("value_norm", "attention", "contribution")


@styled
def figure2(sink: pd.DataFrame) -> Figure:
    """Figure 2: (a) L2 norm of each value vector, (b) attention weights, (c) their product; one line a head.

    Raises:
        ValueError: a quantity is missing, or several rows for one place.
    """
    require(sink, "sink")
    heads = [
        (model, layer, head, rows)
        for model, of_model in by_model(sink)
        for (layer, head), rows in groups(of_model, ["layer", "head"])
    ]
    figure = Figure(figsize=(WIDTH + 0.6, 0.55 + 2.55 * len(heads)), label="Figure 2")
    parts = figure.subfigures(len(heads), 1, squeeze=False)[:, 0]
    for (model, layer, head, rows), part in zip(heads, parts, strict=True):
        norms, attention, contribution = part.subplots(1, 3, width_ratios=[0.85, 1, 1])
        part.suptitle(f"{label(model)}, layer {layer}, head {head}: mean of {int(rows['samples'].max()):,} samples")
        require_values(rows, "sink", "quantity", QUANTITIES)
        by_quantity = {quantity: rows[rows["quantity"] == quantity] for quantity in QUANTITIES}
        values = by_quantity["value_norm"].sort_values("key")
        norms.bar(values["key"], values["value"], width=0.8, color=[series(1).colour, *["0.45"] * (len(values) - 1)])
        norms.set_xlabel("token")
        norms.set_ylabel("L2 norm of value")
        norms.set_title("(a) value norm")
        norms.grid(False, axis="x")
        for axes, quantity, title in (
            (attention, "attention", "(b) attention weight"),
            (contribution, "contribution", "(c) weight × value norm"),
        ):
            matrix = causal_matrix(by_quantity[quantity], "value")
            image = show_causal(axes, matrix, log_norm(matrix))
            axes.set_title(title)
            part.colorbar(image, ax=axes, shrink=0.8, extend="min").ax.tick_params(labelsize=7)
    add_note(
        figure,
        "Shown: of each model, the head that the study names, or else the head that gives the first token the most "
        "attention, averaged over the queries except the first, which has no other key. Colours are logarithmic. "
        "Layers and heads count from 0.",
    )
    return figure
