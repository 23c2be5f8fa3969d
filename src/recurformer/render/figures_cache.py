"""Quality and divergence over the cache that each method really holds."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recurformer.paper import label
from recurformer.render.panels import OURS, End, Panel, draw_panels, name_beta, quality_figure
from recurformer.render.style import WIDTH, add_note, grid, legend_above, series, styled
from recurformer.results.frames import by_model, groups, ratio_of_sums, require
from recurformer.results.frontier import SEEN_BY_SNAPKV, frontier_scores
from recurformer.results.scores import (
    CONTINUATION,
    DIVERGENCE,
    LONG,
    after_training,
    as_paper_does,
    method_label,
    of,
    over_windows,
    scores,
    state_over_tokens,
)
from recurformer.results.words import from_to

CONTROLS = ("mean", "zero")
"""Mixers that nobody would use; untrained they reach perplexities beside which all others look alike."""
AXIS = "cache held (fraction of the original's)"
FRONT: dict[str, Any] = {"color": "0.8", "linewidth": 5, "drawstyle": "steps-post", "zorder": 1}
SURE = 0.1
"""Widest 95 % interval, of fractions or of nats a token, at which points make a front."""
NOTE_STATES = (
    "Each point is a group of heads, all others as they were. The mixer is solved in closed form, not trained. The "
    "groups of a layer share its state and its bytes (a recurrent part in float32, all else in 16 bits). Tokens and "
    "bits: the best choice on the price list that is no larger. Cost: the estimated divergence from the original on "
    "{texts} of {lengths} tokens{seeds}. Triangles: the state is cheaper. Where all tokens fit into its bytes, no "
    "point is drawn."
)
BEYOND = 1.12
"""Room on both sides of an axis of caches, as a factor."""
BESIDE = 0.5
"""Layers between the first and the last group of one layer."""
LOW = 0.1
"""A fraction below which there is no room for text under a point."""


def _name_betas(axes: Axes, panel: Panel) -> None:
    """Each of RecurFormer's points with its β."""
    ours = of(panel.points[~panel.far], "mixer", "mamba")
    for ratio, score, beta in zip(ours["ratio"], ours["mean"].map(panel.measure.shown), ours["setting"], strict=True):
        above = panel.measure is CONTINUATION or score < LOW  # on the side where there is room: its line is at the edge
        name_beta(axes, beta, (ratio, score), 6 if above else -11)


@styled
def frontier(
    continuation: pd.DataFrame,
    needle: pd.DataFrame | None = None,
    turns: pd.DataFrame | None = None,
    written: pd.DataFrame | None = None,
) -> Figure:
    """Divergence from the original after a prompt, agreement with what it writes there, needles found at each length,
    and questions answered about documents that were read before, over the cache really held. An original that does not
    find or answer all stands beside the others.
    """
    every = frontier_scores(continuation, needle, turns, written)
    panels = [Panel(shown.measure, shown.model, shown.points, shown.reason) for shown in every]
    note = "Replaced heads are those of highest RA-I, where no other choice is named."
    if any("snapkv" in set(panel.points["method"]) for panel in panels if panel.measure is not DIVERGENCE):
        note += f" {SEEN_BY_SNAPKV}"
    return draw_panels("Frontier", panels, "ratio", AXIS, note, _log_scales)


PLACES = 16
"""Most parts of a window, by position."""


def _of_places(rows: pd.DataFrame, column: str) -> pd.Series:
    """Mean nats a token, by the middle of a part of the window, and by window."""
    each = rows["tokens"].max()
    wide = each * math.ceil((rows["position"] + rows["tokens"]).max() / PLACES / each)
    middles = (rows["position"] + rows["tokens"] / 2).groupby(rows["position"] // wide).transform("mean")
    return ratio_of_sums(rows, [middles, rows["window"]], column, "tokens")


@styled
def by_position(positions: pd.DataFrame) -> Figure:
    """A row a model, a line a share of the cache: divergence of what is bought by price from the original, and its
    perplexity over the original's, by position.

    Raises:
        ValueError: nothing is bought by price, or the original is missing.
    """
    rows = require(positions, "positions")
    rows = rows[~rows["trained"].astype(bool)]
    rows = rows[rows["model"].isin(rows.loc[rows["family"] == "priced", "model"])]
    if rows.empty:
        raise ValueError("positions measurements have nothing that is bought by price: no cache becomes smaller")
    models = by_model(rows)
    shares = sorted(rows.loc[rows["family"] == "priced", "setting"].unique())
    figure = Figure(figsize=(WIDTH, 1.0 + 2.4 * len(models)), label="By position")
    for (model, of_model), panels in zip(models, figure.subplots(len(models), 2, squeeze=False), strict=True):
        untouched = of_model[of_model["family"] == "original"]
        if untouched.empty:
            raise ValueError(f"positions measurements of {label(model)} lack those of the original")
        original = _of_places(untouched, "negative_log_likelihood")
        for share, line in groups(of_model[of_model["family"] == "priced"], "setting", sort=True):
            look = series(1 + shares.index(share))  # the first is the original's
            rise = (_of_places(line, "negative_log_likelihood") - original).dropna()
            for axes, nats, shown in zip(
                panels, (_of_places(line, "divergence"), rise), (float, math.exp), strict=True
            ):
                ends = over_windows(nats).map(shown)
                axes.plot(ends.index, ends["mean"], **look.line, markersize=4, label=f"{share:g} of the cache")
                axes.fill_between(ends.index, ends["low"], ends["high"], color=look.colour, alpha=0.15, linewidth=0)
        panels[0].set_yscale("log")
        panels[0].set_ylabel(f"{label(model)}: KL to the original\n(nats a token)")
        panels[1].axhline(1, color="0.5", linewidth=0.8)
        panels[1].set_ylabel("perplexity, over the original's")
        for axes in panels:
            axes.set_xlabel("tokens after the prompt")
    legend_above(figure, figure.axes, ncols=4)
    windows = from_to(rows.groupby("model")["window"].nunique())
    names = sorted({method_label("priced", name) for name in rows.loc[rows["family"] == "priced", "method"]})
    add_note(figure, f"{', '.join(names).capitalize()}. Bands: 95 % interval over {windows} windows.")
    return figure


@styled
def long_inputs(long_continuation: pd.DataFrame) -> Figure:
    """Divergence from the original after a long prompt, over the cache really held."""
    panels = [Panel(LONG, model, points, "") for model, points in by_model(scores(long_continuation, LONG))]
    return draw_panels("Long inputs", panels, "ratio", AXIS, "", _log_scales)


def _log_scales(axes: Axes, panel: Panel) -> None:
    axes.set_xscale("log", base=2)
    held = panel.points["ratio"]
    axes.set_xlim(held.min() / BEYOND, max(1.0, held.max()) * BEYOND)  # up to the whole cache: two ticks at least
    if panel.measure.parts == DIVERGENCE.parts:
        axes.set_ylim(auto=True)
        axes.set_yscale("log")


@styled
def states(mixer_prices: pd.DataFrame) -> Figure:
    """What a recurrent state costs in each group of heads, over what tokens and bits of no more bytes cost there."""
    rows = require(mixer_prices, "mixer_prices").dropna(subset="tokens_cost")
    if rows.empty:
        raise ValueError("no mixer holds as many bytes as the least choice of tokens and bits")
    panels = [(model, *mixer) for model, of_model in by_model(rows) for mixer in groups(of_model, "mixer")]
    figure, every, _ = grid(
        "State or tokens", len(panels), 3, lambda columns, lines: (3.3 * columns + 0.4, 1.2 + 2.6 * lines), sharey=True
    )
    for (model, mixer, points), axes in zip(panels, every, strict=True):
        logs = state_over_tokens(points)
        times, by_seed = np.exp(logs.mean(axis=1)), np.exp(logs)
        layers, group = (times.index.get_level_values(name) for name in ("layer", "group"))
        places = layers + BESIDE * (group - group.max() / 2) / max(group.max(), 1)
        cheaper = times < 1
        for chosen, marker, color in ((~cheaper, "o", "0.45"), (cheaper, "^", OURS)):
            axes.vlines(places[chosen], by_seed[chosen].min(axis=1), by_seed[chosen].max(axis=1), color, linewidth=0.6)
            axes.plot(places[chosen], times[chosen], marker, color=color, markersize=4)
        axes.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_yscale("log")
        axes.set_xlabel("layer")
        axes.set_title(
            f"{label(model)}\n{method_label('mixer', mixer)}\n{points['bytes'].mean() / 2**10:.0f} KiB a group, "
            f"cheaper in {cheaper.sum()} of {len(times)}"
        )
    every[0].set_ylabel("estimated cost, over that of\ntokens and bits in no more bytes")
    lengths = ", ".join(f"{tokens:,}" for tokens in sorted(rows["tokens"].unique()))
    alone = "needle_weight" in rows and not rows["needle_weight"].any()
    texts = "text whose lookups count no more than other tokens," if alone else "text with lookups"
    trials = rows.groupby(["model", "mixer"])["seed"].nunique()
    seeds = f"; points: geometric mean of {from_to(trials)} seeds, lines: their range" if trials.max() > 1 else ""
    add_note(figure, NOTE_STATES.format(texts=texts, lengths=lengths, seeds=seeds))
    return figure


def front(points: pd.DataFrame) -> pd.DataFrame:
    """The points that no other dominates: none holds as little cache and scores as much, by rising cache."""
    ordered = points.sort_values(["ratio", "mean"], ascending=[True, False])
    return ordered[ordered["mean"] > ordered["mean"].cummax().shift(fill_value=float("-inf"))]


def _name_betas_and_front(axes: Axes, panel: Panel) -> list[End]:
    """And the front, if the intervals of all points that may be on it are narrow enough to tell which are."""
    _name_betas(axes, panel)
    best = front(panel.points)
    near = panel.points[panel.points["high"] >= best["mean"].min()]
    if (near["high"] - near["low"]).max() > SURE or panel.few[near.index].any():
        return []
    shown = best["mean"].map(panel.measure.shown)
    axes.plot([*best["ratio"], 1.0], [*shown, shown.iloc[-1]], **FRONT)
    return [("Pareto front", (1.0, shown.iloc[-1]), FRONT)]


def _everything(points: pd.DataFrame) -> pd.DataFrame:
    shown = as_paper_does(points)
    return shown[~((shown["family"] == "mixer") & shown["method"].isin(CONTROLS))]


ablation_pareto = quality_figure(
    _everything,
    "ratio",
    AXIS,
    "Quality against cache",
    "Cache: bytes of the tensors held after the prompt over the original's full cache after the same tokens; SnapKV, "
    "CItruS and PyramidInfer (paper) keep all that follows it. The controls among the mixers are left out. No front "
    f"is drawn where a 95 % interval at it is wider than {SURE:g} (of the answers; nats a token).",
    _name_betas_and_front,
)


def _heads_and_layers(points: pd.DataFrame) -> pd.DataFrame:
    """Groups of heads replaced by Mamba, and by whatever replaces layers; single heads, and fewer key-value heads; the
    original as it came and trained likewise.
    """
    layers = of(points, "layers")
    heads = of(points, "mixer", "mamba", *layers["method"].unique())
    others = [of(points, family) for family in ("single", "pooled")]
    return pd.concat([of(points, "original"), after_training(pd.concat([heads, layers, *others]))])


ablation_granularity = quality_figure(
    _heads_and_layers,
    "ratio",
    AXIS,
    "Heads against layers",
    "Points of a line, right to left: rising β, or rising fraction of removed KV heads.",
    _name_betas,
)


PHASES = {"prefill": ("prompt", "seconds", 1), "decode": ("decoded token", "milliseconds", 1000)}
NOTE_SPEED = (
    "{model} on {device}, random weights, batch 1, folded. Medians of {rounds} rounds in which all models took turns. "
    "Times as fast: median and 10th to 90th percentile of the rounds' own ratios."
)


def _over_length(axes: Axes, rows: pd.DataFrame, column: str, factor: float = 1, spread: bool = False) -> None:
    """A line of each β, over the length of the prompt."""
    for place, (beta, line) in enumerate(groups(rows, "beta", sort=True)):
        look, values = series(place), factor * line[column]
        axes.errorbar(
            line["tokens"], values, [values - line["ratio_low"], line["ratio_high"] - values] if spread else None,
            color=look.colour, linestyle=look.dashes, marker=look.marker, label=f"β = {beta:g}" if beta else "original",
        )  # fmt: skip
    lengths = sorted(rows["tokens"].unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{tokens:,.0f}" for tokens in lengths])
    axes.margins(0.1)
    axes.set(xlabel="tokens of the prompt", ylim=(0, None))


MEMORIES = {"cache_bytes": "cache after the prompt", "peak_bytes": "peak beyond the weights"}
"""Columns of memory, the first that was measured -> title of its panel. The stage counts the one, `make bench` measures
the other.
"""


@styled
def speed(bench: pd.DataFrame) -> Figure:
    """Time of a prompt and of a decoded token, beside the original's, and the memory, against the prompt's length."""
    rows = require(bench, "bench")
    rows = rows[rows["batch"] == 1].sort_values("tokens")
    models = by_model(rows)
    figure, panels, _ = grid("Time and memory against length", 6 * len(models), 3, lambda c, r: (WIDTH, 2.5 * r))
    for place, (model, of_model) in enumerate(models):
        above, below = panels[6 * place : 6 * place + 3], panels[6 * place + 3 : 6 * place + 6]
        for upper, lower, (phase, (title, unit, factor)) in zip(above, below, PHASES.items(), strict=False):
            of_phase = of_model[of_model["topic"] == phase]
            _over_length(upper, of_phase, "median_seconds", factor)
            _over_length(lower, of_phase, "ratio", spread=True)
            upper.set(title=title, ylabel=unit)
            lower.set_ylabel("times as fast")
        memory = next((column for column in MEMORIES if column in of_model), None)
        if memory is None:
            above[2].set_axis_off()
        else:
            _over_length(above[2], of_model[of_model["topic"] == "prefill"], memory, 1e-6)
            above[2].set(title=MEMORIES[memory], ylabel="MB")
        below[2].set_axis_off()
        if len(models) > 1:
            above[0].set_title(label(model), loc="left")
    legend_above(figure, panels, ncols=4)
    about = {name: " or ".join(f"{value}" for value in rows[name].unique()) for name in ("device", "rounds")}
    add_note(figure, NOTE_SPEED.format(model=", ".join(label(model) for model, _ in models), **about))
    return figure
