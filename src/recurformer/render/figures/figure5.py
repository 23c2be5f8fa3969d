"""Figure 5: averaged attention maps of heads with high, middling and low RA-I."""

import pandas as pd
from matplotlib.figure import Figure

from recurformer.paper import label
from recurformer.render.figures.matrix import causal_matrix, log_norm, show_causal
from recurformer.render.style import WIDTH, add_note, styled
from recurformer.results.frames import by_model, groups, require, require_values

LEVELS = ("high", "mid", "low")


@styled
def figure5(attention_map: pd.DataFrame) -> Figure:
    """Figure 5: attention weights averaged over samples, rows models, columns high, mid and low RA-I, one colour scale.

    The first token is part of the attention but not of the view, as in the paper.

    Raises:
        ValueError: a level is missing, several heads at one level, or no positive weight.
    """
    require(attention_map, "attention_map")
    models = {model: rows[rows["key"] > 0] for model, rows in by_model(attention_map)}
    maps, titles = {}, {}
    for model, rows_of_model in models.items():
        require_values(rows_of_model, f"attention_map ({model})", "level", LEVELS)
        for level in LEVELS:
            rows = rows_of_model[rows_of_model["level"] == level]
            heads = [head for head, _ in groups(rows, ["layer", "head", "ra_i"])]
            if len(heads) > 1:
                raise ValueError(
                    f"attention_map measurements have {len(heads)} heads for {model}, {level}: one is shown"
                )
            layer, head, ra_i = heads[0]
            maps[model, level] = causal_matrix(rows, "weight")[1:, 1:]
            titles[model, level] = f"{level} RA-I: layer {layer}, head {head}\nRA-I {ra_i:,}"
    norm = log_norm(*maps.values())
    figure = Figure(figsize=(WIDTH + 0.4, 0.6 + 2.45 * len(models)), label="Figure 5")
    panels = figure.subplots(len(models), len(LEVELS), squeeze=False)
    for model, line in zip(models, panels, strict=True):
        for level, axes in zip(LEVELS, line, strict=True):
            image = show_causal(axes, maps[model, level], norm, first=1)
            axes.set_title(titles[model, level])
            axes.set_ylabel("")
        line[0].set_ylabel(f"{label(model)}\nquery token")
    for axes in panels[:-1].ravel():
        axes.set_xlabel("")
    bar = figure.colorbar(image, ax=panels, shrink=0.8 if len(models) == 1 else 0.5, extend="min")
    bar.set_label("mean attention weight")
    samples = ", ".join(f"{label(model)} {int(rows['samples'].max()):,}" for model, rows in models.items())
    add_note(
        figure,
        f"Samples: {samples}. The first token (0) is left out of the view, not of the attention. Logarithmic colours. "
        "Layers and heads count from 0.",
    )
    return figure
