"""Figure 1: how a recency-aware head and the Mamba block in its place update a value, shaded by measured weights."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

from recurformer.paper import label
from recurformer.render.style import WIDTH, add_note, styled
from recurformer.results.frames import by_model, require, require_values

SHOWN = 5
"""Last tokens drawn one by one; the first token stands before them and an ellipsis."""
CELL = 0.8
"""Height of a token's box."""
WIDE = 0.92
"""Its width, wide enough for an index such as t - 4."""
STEP = 1.3
"""Distance between two tokens."""
RADIUS = 0.36
"""Of the gates and of the sum."""
SHADES = "Oranges"
Token = tuple[float, str, float]
"""Where a token stands, its index and its weight."""
Colour = tuple[float, float, float, float] | str
ARROW = {"arrowstyle": "-|>", "color": "0.25", "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0}


def _weights(influence: pd.DataFrame, mixer: str) -> pd.Series:
    """Weight of each key, in order."""
    rows = influence[influence["mixer"] == mixer]
    if rows["key"].duplicated().any():
        raise ValueError(
            f"influence measurements have several rows of {mixer} for one key: Figure 1 shows one query of one head"
        )
    return rows.set_index("key")["weight"].sort_index()


def _box(axes: Axes, x: float, y: float, text: str, colour: Colour, *, width: float = CELL, size: float = 8) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - CELL / 2), width, CELL, boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=colour, edgecolor="0.2", linewidth=0.9,
        )
    )  # fmt: skip
    brightness = float(np.dot(mpl.colors.to_rgb(colour), (0.3, 0.59, 0.11)))
    axes.text(x, y, text, ha="center", va="center", color="white" if brightness < 0.45 else "black", fontsize=size)


def _node(axes: Axes, x: float, y: float, text: str, size: float = 7.5) -> None:
    axes.add_patch(Circle((x, y), RADIUS, facecolor="white", edgecolor="0.2", linewidth=0.9, zorder=3))
    axes.text(x, y, text, ha="center", va="center", fontsize=size, zorder=4)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops=ARROW)


def _tokens(weights: pd.Series) -> list[Token]:
    """The last tokens, and the first one two places before them where it is not among them."""
    query = int(weights.index.max())
    shown = [key for key in weights.index if key > query - SHOWN]
    first = [] if weights.index.min() in shown else [(0.0, "0", float(weights.iloc[0]))]
    return first + [
        (STEP * place, "t" if key == query else f"{{t-{query - key}}}", float(weights[key]))
        for place, key in enumerate(shown, 2 * len(first))
    ]


def _draw_values(axes: Axes, tokens: list[Token], norm: Normalize) -> None:
    shades = mpl.colormaps[SHADES]
    for place, (x, index, weight) in enumerate(tokens):
        if x > STEP * place == STEP:
            axes.text(STEP, 0, "…", ha="center", va="center", fontsize=12)
        _box(axes, x, 0, f"$V_{index}$", shades(norm(weight)), width=WIDE)


def _draw_attention(axes: Axes, tokens: list[Token]) -> None:
    """Softmax weights of the values, one weighted sum."""
    last = tokens[-1][0]
    for x, index, _ in tokens:
        _arrow(axes, (x, CELL / 2), (x, 1.2))
        _box(axes, x, 1.6, f"$f(Q_tK_{index}^{{\\top}})$", "white", width=1.18, size=6.2)
        start, centre = np.array([x, 2.0]), np.array([last / 2, 3.2])
        edge = centre - RADIUS * (centre - start) / np.linalg.norm(centre - start)
        _arrow(axes, (x, 2.0), (edge[0], edge[1]))
    _node(axes, last / 2, 3.2, "$\\sum$", size=9)
    _arrow(axes, (last / 2, 3.2 + RADIUS), (last / 2, 4.0))
    _box(axes, last / 2, 4.4, "$V_t^{\\,update}$", "0.93", width=1.7)


def _draw_mamba(axes: Axes, tokens: list[Token]) -> None:
    """Values through input gates into a state that decays with each token; the output gate reads it at the query."""
    for place, (x, index, _) in enumerate(tokens):
        _arrow(axes, (x, CELL / 2), (x, 1.2 - RADIUS))
        _node(axes, x, 1.2, f"$B_{index}$")
        _arrow(axes, (x, 1.2 + RADIUS), (x, 2.2))
        _box(axes, x, 2.6, f"$h_{index}$", "0.93", width=WIDE)
        if place:
            before = tokens[place - 1][0]
            _arrow(axes, (before + WIDE / 2, 2.6), (x - WIDE / 2, 2.6))
            axes.text((before + x) / 2, 2.75, "$A$", ha="center", va="bottom", fontsize=8)
    last = tokens[-1][0]
    _arrow(axes, (last, 3.0), (last, 4.4 - RADIUS))
    _node(axes, last, 4.4, "$C_t$")
    _arrow(axes, (last - RADIUS, 4.4), (last - 1.0, 4.4))
    _box(axes, last - 1.85, 4.4, "$V_t^{\\,update}$", "0.93", width=1.7)


def _draw_row(axes: Axes, weights: pd.Series, norm: Normalize) -> None:
    """All weights of the row, by distance from the query."""
    distance = weights.index.max() - weights.index.to_numpy()
    colours = mpl.colormaps[SHADES](norm(weights.to_numpy()))
    axes.bar(distance, weights, width=0.9, color=colours, edgecolor="0.3", linewidth=0.3)
    axes.invert_xaxis()
    axes.set_xlabel("tokens before the query")
    axes.grid(False, axis="x")


@styled
def figure1(influence: pd.DataFrame) -> Figure:
    """Figure 1: left, the attention row of a recency-aware head; right, the weights that the Mamba block gives.

    Above, the two updates as the paper draws them, each value shaded by the weight it really has; below, the whole row.
    Shown is the first model of the measurements.

    Raises:
        ValueError: one mixer only, or more than one query or head.
    """
    model, rows = by_model(require(influence, "influence"))[0]
    require_values(rows, "influence", "mixer", ["attention", "mamba"])
    rows_by_mixer = {mixer: _weights(rows, mixer) for mixer in ("attention", "mamba")}
    attended = rows[rows["mixer"] == "attention"].iloc[0]
    # The square root keeps small weights apart; both sides share the scale.
    norm = PowerNorm(0.5, 0, max(float(weights.max()) for weights in rows_by_mixer.values()))
    figure = Figure(figsize=(WIDTH + 0.8, 4.9), label="Figure 1")
    panels = figure.subplots(2, 2, gridspec_kw={"height_ratios": [2.1, 1]}, sharey="row")
    titles = ("attention with recency aware: weighted sum", "linear RNN (Mamba): gated recurrence")
    draws = (_draw_attention, _draw_mamba)
    for column, (weights, draw, title) in enumerate(zip(rows_by_mixer.values(), draws, titles, strict=True)):
        top, bottom = panels[:, column]
        tokens = _tokens(weights)
        _draw_values(top, tokens, norm)
        draw(top, tokens)
        top.set_title(title)
        top.set_aspect("equal")
        top.set_xlim(-0.7, tokens[-1][0] + 0.7)
        top.set_ylim(-0.5, 4.9)
        top.set_axis_off()
        _draw_row(bottom, weights, norm)
    panels[1, 0].set_ylabel("weight")
    scale = mpl.cm.ScalarMappable(norm=norm, cmap=SHADES)
    bar = figure.colorbar(scale, ax=panels, shrink=0.7, label="weight of the value in the update")
    bar.ax.tick_params(labelsize=7)
    add_note(
        figure,
        f"{label(model)}, layer {attended['layer']}: attention head {attended['head']} before, the layer's Mamba "
        f"block after the conversion, at query token t = {attended['query']}.\n"
        "$f(x) = \\mathrm{softmax}(x/\\sqrt{d_k})$; $B_i$, $C_i$: input and output gates; $A$: state transition. "
        "Weights of each side sum to 1; darker is more.\n"
        "Mamba weights: of each token through convolution, SiLU (its sigmoid is a gate), selective scan and skip $D$; "
        "mean size over channels. Left out: the block's output gate, one factor a channel, and its projections.",
    )
    return figure
