"""The paper's six figures, and the registry of all figures: name -> function of measurement frames.

Its parameters are named after the kinds of measurements that it takes (`recurformer.results.frames.COLUMNS`); one with
a default may be missing. `records` is no kind, but the records of the runs behind them, by their ids. All raise
ValueError for a kind without rows or without one of its columns, and where they are given nothing that they show.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

from recurformer.paper import CELLS, label
from recurformer.render.figures_ablations import (
    ablation_mixers,
    ablation_needle,
    ablation_ra_i,
    ablation_selectors,
    ablation_sizes,
)
from recurformer.render.figures_cache import (
    ablation_granularity,
    ablation_pareto,
    by_position,
    frontier,
    long_inputs,
    speed,
    states,
)
from recurformer.render.figures_recovery import comes_back, equal_bytes, recovery, tradeoff
from recurformer.render.style import (
    WIDTH,
    add_note,
    causal_matrix,
    grid,
    legend_above,
    log_norm,
    series,
    show_causal,
    show_heads,
    styled,
)
from recurformer.results.frames import by_model, groups, ratio_of_sums, require, require_values
from recurformer.results.learned import TRIAL, at_best_rate, best_learning_rates, why_mqar_not_run
from recurformer.results.scores import ra_i

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


@styled
def figure1(influence: pd.DataFrame) -> Figure:
    """Figure 1: left, the attention row of a recency-aware head; right, the weights that the Mamba block gives.

    Above, the two updates as the paper draws them, each value shaded by the weight it really has; below, the whole row.
    Shown is the first model of the measurements.

    Raises:
        ValueError: one mixer only, or more than one query or head.
    """
    model, rows = by_model(require(influence, "influence"))[0]
    mixers = ("attention", "mamba")
    require_values(rows, "influence", "mixer", mixers)
    for mixer in mixers:
        if rows.loc[rows["mixer"] == mixer, "key"].duplicated().any():
            raise ValueError(
                f"influence measurements have several rows of {mixer} for one key: Figure 1 shows one query of one head"
            )
    weights_by_mixer = [rows[rows["mixer"] == mixer].set_index("key")["weight"].sort_index() for mixer in mixers]
    attended = rows[rows["mixer"] == "attention"].iloc[0]
    # The square root keeps small weights apart; both sides share the scale.
    norm = PowerNorm(0.5, 0, max(float(weights.max()) for weights in weights_by_mixer))
    shades = mpl.colormaps[SHADES]
    figure = Figure(figsize=(WIDTH + 0.8, 4.9), label="Figure 1")
    panels = figure.subplots(2, 2, gridspec_kw={"height_ratios": [2.1, 1]}, sharey="row")
    titles = ("attention with recency aware: weighted sum", "linear RNN (Mamba): gated recurrence")
    draws = (_draw_attention, _draw_mamba)
    for (top, bottom), weights, draw, title in zip(panels.T, weights_by_mixer, draws, titles, strict=True):
        tokens = _tokens(weights)
        for place, (x, index, weight) in enumerate(tokens):
            if x > STEP * place == STEP:
                top.text(STEP, 0, "…", ha="center", va="center", fontsize=12)
            _box(top, x, 0, f"$V_{index}$", shades(norm(weight)), width=WIDE)
        draw(top, tokens)
        top.set_title(title)
        top.set_aspect("equal")
        top.set_xlim(-0.7, tokens[-1][0] + 0.7)
        top.set_ylim(-0.5, 4.9)
        top.set_axis_off()
        distance = weights.index.max() - weights.index.to_numpy()
        colours = shades(norm(weights.to_numpy()))
        bottom.bar(distance, weights, width=0.9, color=colours, edgecolor="0.3", linewidth=0.3)
        bottom.invert_xaxis()
        bottom.set_xlabel("tokens before the query")
        bottom.grid(False, axis="x")
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
        require_values(rows, "sink", "quantity", ["value_norm", "attention", "contribution"])
        values = rows[rows["quantity"] == "value_norm"].sort_values("key")
        norms.bar(values["key"], values["value"], width=0.8, color=[series(1).colour, *["0.45"] * (len(values) - 1)])
        norms.set_xlabel("token")
        norms.set_ylabel("L2 norm of value")
        norms.set_title("(a) value norm")
        norms.grid(False, axis="x")
        for axes, quantity, title in (
            (attention, "attention", "(b) attention weight"),
            (contribution, "contribution", "(c) weight × value norm"),
        ):
            matrix = causal_matrix(rows[rows["quantity"] == quantity], "value")
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


MODELS_IN_A_ROW = 3


@styled
def figure3(metrics: pd.DataFrame) -> Figure:
    """Figure 3: loss during the continual training of the original and of RecurFormer, one panel a model.

    The paper prints no loss. Where it prints the perplexity of a model after its training (Table 3), the logarithm of
    it stands as a star at the last step.

    Raises:
        ValueError: no finite loss.
    """
    require(metrics, "metrics")
    logged = metrics[metrics["loss"].map(math.isfinite)]
    if logged.empty:
        raise ValueError("metrics measurements have no finite loss")
    models = by_model(logged)
    figure, panels, columns = grid(
        "Figure 3", len(models), MODELS_IN_A_ROW,
        lambda columns, lines: (WIDTH if columns > 1 else 0.7 * WIDTH, 0.8 + 2.6 * lines),
    )  # fmt: skip
    converted = sorted(set(logged["beta"]) - {0})
    looks = {beta: series(place) for place, beta in enumerate([0, *converted])}
    for (model, rows), axes in zip(models, panels, strict=True):
        for beta, runs in groups(rows, "beta", sort=True):
            look, name = looks[beta], "original" if beta == 0 else f"RecurFormer, β = {beta:g}"
            curves = runs.pivot_table(index="step", columns="seed", values="loss")
            for seed in curves:
                axes.plot(curves.index, curves[seed], color=look.colour, alpha=0.25, linewidth=0.7)
            points = max(1, round(len(curves) / 20))  # fewer at both ends
            smooth = curves.mean(axis=1).rolling(points, center=True, min_periods=1).mean()
            spacing = max(1, len(smooth) // 8)
            every = (spacing // 2 if beta else 0, spacing)
            axes.plot(smooth.index, smooth, **look.line, label=name, markevery=every)
        printed = {cell.beta: cell.value for cell in CELLS if cell.table == 3 and cell.model == model}
        for beta in set(looks).intersection(printed):
            axes.plot(
                rows["step"].max(), math.log(printed[beta]), "*", color=looks[beta].colour, markersize=11,
                clip_on=False, label=f"paper's perplexity, {'original' if beta == 0 else f'β = {beta:g}'}",
            )  # fmt: skip
        axes.set_xlabel("training step")
        axes.set_title(label(model))
    for axes in panels[::columns]:
        axes.set_ylabel("training loss (nats per token)")
    legend_above(figure, panels, ncols=3)
    seeds = logged["seed"].nunique()
    of_seeds = f", mean of {seeds} seeds" if seeds > 1 else ""
    add_note(figure, f"Thick: running mean over a twentieth of the logged points{of_seeds}; faint: as logged.")
    return figure


@styled
def figure4(mqar: pd.DataFrame, records: Mapping[str, Any] | None = None) -> Figure:
    """Figure 4: accuracy against beta, one panel a test length, at each beta's best learning rate.

    The rate is chosen by `best_learning_rates`, on the validation split; the panels show the test split, all rates as
    faint points. Chance is guessing one of the values in the sample, 1 / pairs. Where the original has not learned the
    task (`why_mqar_not_run`), the panels say "not-run" and show the faint points alone. No line joins trainings of
    different numbers of steps, as far as the records of their runs tell these.

    Raises:
        ValueError: no row of one of the splits.
    """
    require(mqar, "mqar")
    require_values(mqar, "mqar", "split", ["validation", "test"])
    best = best_learning_rates(mqar)
    test = mqar[mqar["split"] == "test"]
    reason = why_mqar_not_run(mqar, best)
    of_runs = {run: record["settings"].get("training_steps") for run, record in (records or {}).items()}
    of_rows = test.get("run", pd.Series(index=test.index)).map(of_runs).astype(float)
    steps = of_rows.groupby([test["beta"], test["learning_rate"]]).max()
    usual = steps[[at in best.items() for at in steps.index]].min()
    more = (steps / usual)[steps > usual]
    panels = groups(test, "length", sort=True)
    figure, shown, columns = grid("Figure 4", len(panels), 4, lambda _, lines: (WIDTH, 1.2 + 2.6 * lines), sharey=True)
    betas = sorted(test["beta"].unique())
    for place, ((length, rows), axes) in enumerate(zip(panels, shown, strict=True)):
        every, name = ratio_of_sums(rows, TRIAL, "correct", "queries"), "every learning rate and seed"
        axes.plot(every.index.get_level_values("beta"), every, "x", color="0.6", markersize=4, label=name)
        if reason:
            plate = {"facecolor": "white", "edgecolor": "none", "pad": 2, "alpha": 0.75}  # word and points both show
            axes.text(0.5, 0.5, "not-run", transform=axes.transAxes, ha="center", va="center", bbox=plate, zorder=4)
        else:
            at_best = ratio_of_sums(at_best_rate(rows, best), ["beta", "seed"], "correct", "queries")
            by_seed = at_best.groupby("beta")
            mean = by_seed.mean()
            look, bars = series(2), pd.DataFrame([mean - by_seed.min(), by_seed.max() - mean])
            alike = np.array([(beta, best[beta]) not in more.index for beta in mean.index])
            styles = {"best learning rate": (alike, "-", look.colour), "trained longer": (~alike, "none", "white")}
            for name, (part, line, fill) in styles.items():
                if part.any():
                    axes.errorbar(
                        mean.index[part], mean[part], yerr=bars.loc[:, part] if by_seed.size().max() > 1 else None,
                        color=look.colour, linestyle=line, marker=look.marker, markerfacecolor=fill, capsize=2.5,
                        elinewidth=1, label=f"RecurFormer, {name}",
                    )  # fmt: skip
            original = mean[mean.index == 0]
            axes.plot(
                original.index, original, series(0).marker, color=series(0).colour, markersize=6.5, zorder=3,
                label="original (β = 0), best rate",
            )  # fmt: skip
            chance = float((rows["queries"] / rows["pairs"]).sum() / rows["queries"].sum())
            look, name = series(1), "chance: any value shown"
            axes.axhline(chance, color=look.colour, linestyle=look.dashes, linewidth=1, label=name)
        kind = "trained" if rows["trained_length"].astype(bool).any() else "not trained"
        pairs = ", ".join(f"{count}" for count in sorted(rows["pairs"].unique()))
        axes.set_title(f"({chr(ord('a') + place)}) {length:,} tokens\n{pairs} pairs, {kind}")
        axes.set_xlabel("heads replaced, β")
        axes.set_xticks(betas, [f"{beta:g}" for beta in betas], rotation=60)
        axes.set_ylim(-0.03, 1.05)
    for axes in shown[::columns]:
        axes.set_ylabel("accuracy (fraction of correct values)")
    legend_above(figure, shown[:1], ncols=2)
    trainings = at_best_rate(test, best).groupby("beta")["seed"].nunique()
    seeds = f"Points: mean over seeds ({_by_beta(trainings)}), bars: lowest to highest."
    points = seeds if trainings.max() > 1 else "One seed."
    rates = _by_beta(pd.Series(best))
    named = ", ".join(f"β = {at[0]:g} at {at[1]:g} ({times:g})" for at, times in zip(more.index, more, strict=True))
    some = "Where it still learned, a training may have more steps (mqar.longer)."
    longer = f"Trained longer (times the steps of the others): {named}." if named else some
    add_note(
        figure,
        "Learning rate chosen for each β by the mean accuracy on validation samples of the trained lengths: "
        f"{rates}.\n{reason or points} {longer}",
    )
    return figure


def _by_beta(values: pd.Series) -> str:
    """Each value with the fractions of heads, its labels, that have it."""
    same = [(of.iloc[0], sorted(of.index)) for _, of in values.groupby(values)]
    return "; ".join(f"{value:g} for β = {', '.join(f'{beta:g}' for beta in betas)}" for value, betas in same)


LEVELS = ("high", "mid", "low")


@styled
def figure5(attention_map: pd.DataFrame) -> Figure:
    """Figure 5: attention weights averaged over samples, rows models, columns high, mid and low RA-I, one colour scale.

    The first token is part of the attention but not of the view, as in the paper.

    Raises:
        ValueError: a level is missing, or several heads at one level.
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
            to_first = 1 - rows.groupby("query")["weight"].sum().mean()
            titles[model, level] = (
                f"{level} RA-I: layer {layer}, head {head}\nRA-I {ra_i:,}, to token 0: {100 * to_first:.0f} %"
            )
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
        f"Samples: {samples}. Token 0, the first, is left out of the view, not of the attention. Above: how much of "
        "their attention the others give to it. Logarithmic colours. Layers and heads count from 0.",
    )
    return figure


@styled
def figure6(profile: pd.DataFrame) -> Figure:
    """Figure 6: RA-I of each head (to the right) in each layer (downwards), one panel a model, one colour scale.

    RA-I counts samples; the colour is the fraction of the model's samples, so that models with more or fewer compare.

    Raises:
        ValueError: several thresholds for one model.
    """
    require(profile, "profile")
    matrices, facts = {}, []
    for model, rows in by_model(profile):
        if rows["threshold"].nunique() != 1:
            raise ValueError(f"profile measurements of {model} have several thresholds: RA-I is counted against one")
        samples = rows["sample"].nunique()
        matrices[model] = ra_i(rows).unstack("head").sort_index().to_numpy()  # (layers, heads)
        facts.append(f"{label(model)}: {samples:,} samples, α = {rows['threshold'].iloc[0]:g}")
    tallest = max(map(len, matrices.values()))

    def size(columns: int, lines: int) -> tuple[float, float]:
        return WIDTH if columns > 1 else 0.55 * WIDTH, 0.9 + lines * min(4.2, 0.6 + 0.14 * tallest)

    figure, panels, columns = grid("Figure 6", len(matrices), MODELS_IN_A_ROW, size)
    for (model, matrix), axes in zip(matrices.items(), panels, strict=True):
        image = show_heads(axes, matrix, label(model))
    for axes in panels[::columns]:
        axes.set_ylabel("layer")
    figure.colorbar(image, ax=figure.axes, shrink=0.8).set_label("RA-I / samples")
    add_note(figure, "; ".join(facts) + ". Layers and heads count from 0.")
    return figure


FIGURES: dict[str, Callable[..., Figure]] = {
    "figure1": figure1, "figure2": figure2, "figure3": figure3, "figure4": figure4, "figure5": figure5,
    "figure6": figure6, "recovery": recovery, "comes_back": comes_back, "tradeoff": tradeoff,
    "equal_bytes": equal_bytes, "speed": speed, "ablation_pareto": ablation_pareto,
    "frontier": frontier, "by_position": by_position, "long_inputs": long_inputs,
    "states": states, "ablation_granularity": ablation_granularity, "ablation_selectors": ablation_selectors,
    "ablation_mixers": ablation_mixers, "ablation_sizes": ablation_sizes, "ablation_needle": ablation_needle,
    "ablation_ra_i": ablation_ra_i,
}  # fmt: skip
