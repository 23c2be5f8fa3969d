"""How quality recovers by tokens seen, and at equal bytes."""

import math
import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter

from recurformer.paper import label
from recurformer.render.panels import FAR, is_ours, line_style, name_beta, name_lines
from recurformer.render.style import WIDTH, add_note, legend_above, series, styled
from recurformer.results.frames import by_model, groups, in_order, ratio_of_sums, require
from recurformer.results.learned import (
    ARMS,
    LENGTHS,
    RECOVERED_BY,
    arm_label,
    at_equal_bytes,
    last_points,
    recovery_points,
    state_bytes,
    untrained,
)
from recurformer.results.scores import PAPERS_SELECTOR, by_method, method_label, subject_of
from recurformer.results.words import from_to
from recurformer.study.ablations import COMMON_BETA

CACHE = f"bytes_{LENGTHS[0]}"
RECOVERED = {"divergence": "KL to the original (nats a token)", "perplexity": "perplexity, over the original's"}
"""What is drawn of a recovery -> its axis."""
REPEAT: dict[str, Any] = {"color": "0.5", "linewidth": 0.9, "linestyle": (0, (1, 2)), "zorder": 0}
REPEATED = "Dotted: there plain training begins its text again. "
ON_THE_SAME = "Perplexity over that of the original before any training, on the same windows."


def _over_original(rows: pd.DataFrame, tokens: int) -> pd.DataFrame:
    """The points of one model, their perplexity over the original's after so many tokens, on the same windows."""
    original = rows[(rows["arm"] == "original") & (rows["tokens"] == tokens)]
    nats = original.groupby("window")["negative_log_likelihood"].mean()
    return recovery_points(
        rows.assign(negative_log_likelihood=rows["negative_log_likelihood"] - rows["window"].map(nats))
    )


def _first_model(recovery: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """The first model and its points, their perplexity over that of the untouched original on the same windows."""
    model, rows = by_model(require(recovery, "recovery"))[0]
    untrained(rows, model)  # refuses rows without one
    return model, _over_original(rows, tokens=0)


def _means(points: pd.DataFrame, by: str | list[str], quantity: str) -> tuple[pd.Series, list[pd.Series]]:
    """Means over seeds of a quantity by columns, and how far their intervals reach down and up."""
    means = points.groupby(by)[[quantity, f"{quantity}_low", f"{quantity}_high"]].mean()
    mean, low, high = (means[column] for column in means)
    return mean, [mean - low, high - mean]


def _repeat(rows: pd.DataFrame, drawn: pd.DataFrame) -> float:
    """The tokens after which the training text of a model begins again; infinity where what is drawn does not read so
    far, or where no training told the length of its text.
    """
    tokens = rows["text_tokens"].max() if "text_tokens" in rows else math.nan
    return tokens if tokens < drawn["tokens"].max() else math.inf


def _axis_of_tokens(axes: Axes, curves: pd.DataFrame, repeat: float) -> float:
    """Make the axis one of tokens that were read, with a mark where the text begins again. The start stands apart, at
    the place that is returned: nothing is known before the next point, and a logarithmic axis has no 0.
    """
    first, last = curves.loc[curves["tokens"] > 0, "tokens"].agg(["min", "max"])
    start = first / 3
    axes.set_xscale("log")
    axes.set_yscale("log")
    powers = [10**power for power in range(1, 10) if first <= 10**power <= last] or [first, last]
    axes.set_xticks([start, *powers], ["0", *(f"{tokens:,}" for tokens in powers)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.text(start * 3**0.5, 0, "//", transform=axes.get_xaxis_transform(), ha="center", va="center", fontsize=8)
    axes.set_xlabel("tokens seen")
    if math.isfinite(repeat):
        axes.axvline(repeat, **REPEAT)
    return float(start)


def _draw_tokens(axes: Axes, curves: pd.DataFrame, quantity: str, repeat: float) -> None:
    """One line an arm over the tokens that it has read."""
    start = _axis_of_tokens(axes, curves, repeat)
    for place, arm in enumerate(in_order(curves["arm"], ARMS)):
        look, rows = series(place), curves[curves["arm"] == arm]
        if quantity == "divergence" and arm == "original":
            rows = rows[rows["tokens"] > 0]  # it is its own yardstick before it learns
        name = arm_label(arm, rows["mixer"].iloc[0])
        before, course = (
            _means(part, "tokens", quantity) for part in (rows[rows["tokens"] == 0], rows[rows["tokens"] > 0])
        )
        style = {**look.line, "markersize": 4.5, "elinewidth": 0.8, "capsize": 2}
        axes.errorbar(course[0].index, *course, **style, label=name)
        axes.errorbar([start] * len(before[0]), *before, **style | {"markerfacecolor": "white"})
    if quantity == "perplexity":
        axes.axhline(1, color="0.5", linewidth=0.8, label="original, as it was")
    axes.set_ylabel(RECOVERED[quantity])


def _draw_betas(axes: Axes, points: pd.DataFrame, arms: list[str]) -> None:
    """Perplexity at the end of each run, by the fraction of heads; of recipes with several ones.

    Those of `arms` have the looks of their places there. A shorter run of a recipe, such as `plus_98k`, looks like the
    recipe. No line crosses a fraction that it lacks.
    """
    ends = last_points(points[points["beta"] > 0])
    betas = sorted(ends["beta"].unique())
    places = {arm: place for place, arm in enumerate(arms)}
    for number, (arm, rows) in enumerate(groups(ends, "arm"), len(places)):
        if rows["beta"].nunique() > 1:
            place = places.get(str(arm), places.get(str(arm).rpartition("_")[0], number))
            mean, bars = _means(rows, "beta", "perplexity")
            axes.errorbar(betas, mean.reindex(betas), [bar.reindex(betas) for bar in bars], **series(place).line,
                elinewidth=0.8, capsize=2, label=arm_label(str(arm)))  # fmt: skip
    axes.axhline(1, color="0.5", linewidth=0.8)
    axes.set_yscale("log")
    axes.margins(y=0.3)  # room for the legend
    axes.set_xticks(betas, [f"{beta:g}" for beta in betas])
    axes.set_xlabel("heads replaced, β")
    axes.set_ylabel(RECOVERED["perplexity"])
    axes.legend(loc="upper left")


def _best_window(points: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """The points of the window that ends nearest to the original, of those of no more KiB than what is shown."""
    windows = points[at_equal_bytes(points) & (points["mixer"] == "window") & points["beta"].isin(curves["beta"])]
    windows = windows[state_bytes(windows) // 1024 <= state_bytes(curves).max() // 1024]
    ends = last_points(windows).groupby("arm")["divergence"].mean()
    return windows[windows["arm"].isin(ends.nsmallest(1).index)]


@styled
def recovery(recovery: pd.DataFrame) -> Figure:
    """KL to the original and perplexity on held-out windows over tokens seen, one line an arm, at the fraction of heads
    with the most recipes, beside the best window in as many bytes; and where each fraction ended.

    Of several models the first is shown.

    Raises:
        ValueError: no converted model or no original.
    """
    model, every = _first_model(recovery)
    points = every[~at_equal_bytes(every)]
    converted = points[points["beta"] > 0]
    if converted.empty:
        raise ValueError("recovery measurements have no converted model: nothing recovers")
    beta = max(groups(converted, "beta"), key=lambda points: points[1]["arm"].nunique())[0]
    curves = points[points["beta"].isin([0.0, beta])]
    window = _best_window(every, curves)
    curves = pd.concat([curves, window])
    repeat = _repeat(recovery[recovery["model"] == model], curves)
    several = bool((converted.groupby("arm")["beta"].nunique() > 1).any())
    lines = 1 + several
    figure = Figure(figsize=(WIDTH, 1.2 + 2.5 * lines), label="Recovery")
    panels = figure.subplots(lines, 2).ravel()
    for axes, quantity in zip(panels, RECOVERED, strict=False):
        _draw_tokens(axes, curves, quantity, repeat)
        axes.set_title(f"{label(model)}, β = {beta:g}")
    if several:
        _draw_betas(panels[2], points, in_order(curves["arm"], ARMS))
        panels[2].set_title("every β")
        panels[3].set_axis_off()
        panels[3].legend(*panels[1].get_legend_handles_labels(), loc="center")
    else:
        legend_above(figure, panels[1:], ncols=3)
    marked = REPEATED if math.isfinite(repeat) else ""
    about = "Window: of those in as many bytes or fewer, the one that ends nearest to the original. "
    add_note(
        figure,
        f"{int(points['windows'].min())} held-out windows; bars: 95 % interval over them. Of several seeds the mean. "
        f"{ON_THE_SAME} {about if len(window) else ''}{marked}Hollow: at the start. All recipes read equal batches, "
        "and the closed form's tokens count. The learning rate falls to 0 at the end of each run, so an earlier point "
        "is worse than a shorter run would be.",
    )
    return figure


@styled
def equal_bytes(recovery: pd.DataFrame, layer_errors: pd.DataFrame) -> Figure:
    """Quality of each arm, hollow before any training, filled after the same tokens; and the closed form's error.

    Of several models the first is shown. Arms without a closed form have no error.

    Raises:
        ValueError: no arm at equal bytes or no original.
    """
    model, points = _first_model(recovery)
    arms = points[at_equal_bytes(points)]
    if arms.empty:
        raise ValueError("recovery measurements have no arms at equal bytes: nothing to compare")
    errors = require(layer_errors, "layer_errors")
    looks = {mixer: series(place) for place, mixer in enumerate(RECOVERED_BY, 1) if mixer in set(arms["mixer"])}
    ends = last_points(arms)
    best_first = ends.groupby("arm")["divergence"].mean().sort_values().index
    figure = Figure(figsize=(WIDTH, 3.6 + 0.38 * len(best_first)), label="Equal bytes")
    panels = figure.subplot_mosaic([list(RECOVERED), ["layers"] * 2], height_ratios=[0.38 * len(best_first), 1.8])
    names = []
    for place, arm in enumerate(best_first):
        rows = arms[arms["arm"] == arm]
        look, name = looks[rows["mixer"].iloc[0]], arm_label(arm, rows["mixer"].iloc[0])
        names.append(f"{name}\n{state_bytes(rows).iloc[0] / 1024:,.0f} KiB")
        for quantity in RECOVERED:
            far = []
            for part, fill in ((rows[rows["tokens"] == 0], "white"), (last_points(rows), look.colour)):
                mean, bars = _means(part, "arm", quantity)
                if quantity == "perplexity" and mean[arm] > FAR:
                    far.append(f"{mean[arm]:,.0f}")
                else:
                    panels[quantity].errorbar(mean, [place], xerr=bars, color=look.colour, marker=look.marker,
                        markerfacecolor=fill, linestyle="none", elinewidth=1, capsize=2)  # fmt: skip
            if far:
                panels[quantity].annotate(
                    " to ".join(far), (1, place), (-16, 0), ("axes fraction", "data"),
                    "offset points", ha="right", va="center", fontsize=7.5, arrowprops={"arrowstyle": "->"},
                )  # fmt: skip
    for quantity, name in RECOVERED.items():
        panels[quantity].set_yticks(range(len(names)), names if quantity == "divergence" else [""] * len(names))
        panels[quantity].set_ylim(len(names) - 0.5, -0.5)
        panels[quantity].set_xlabel("\n".join(textwrap.wrap(name, 22)))
    panels["divergence"].set_xscale("log")
    low, high = panels["perplexity"].get_xlim()
    panels["perplexity"].set_xlim(low, high + (high - low) / 2)  # for the arrows
    panels["perplexity"].axvline(1, color="0.3", linewidth=0.8)
    axes = panels["layers"]
    of_model = errors[errors["model"] == model]
    for arm in (one for one in best_first if one in set(of_model["arm"])):
        chosen = of_model[of_model["arm"] == arm]
        mixer = str(chosen["mixer"].iloc[0])
        missed = chosen.groupby("layer")["after"].mean()
        every = range(missed.index.min(), missed.index.max() + 1)  # no line over layers without replaced heads
        paler = 0.5 if arm in ARMS else 1  # than the first recipe of the mixer
        axes.plot(every, missed.reindex(every), **looks[mixer].line, markersize=4, alpha=paler,
            label=arm_label(arm, mixer))  # fmt: skip
    axes.set_ylim(0, 1)
    axes.set_xlabel("layer")
    axes.set_ylabel("fraction missed")
    axes.legend(ncols=2, loc="upper left")
    add_note(
        figure,
        f"{label(model)}, β = {ends['beta'].iloc[0]:g}, the same heads; bytes that do not grow with the text, float32. "
        f"Filled: after {ends['tokens'].max():,} tokens. Hollow: before training. At an arrow: what is further off, "
        f"before training first. Bars: 95 % interval over {ends['windows'].min()} windows; of several seeds the mean. "
        f"{ON_THE_SAME} Below: fraction of the replaced heads' squared output, in the residual stream, that the closed "
        "form cannot predict.",
    )
    return figure


POSITIONS = 128
"""Positions in a bin of the figure."""


def _by_position(rows: pd.DataFrame, likelihood: str, tokens: str) -> pd.DataFrame:
    """Perplexity by the mean position of a bin: mean, low and high over the seeds."""
    places = rows["position"].groupby(rows["position"] // POSITIONS).transform("mean")
    nats = ratio_of_sums(rows, [places, rows["seed"]], likelihood, tokens).dropna()  # NaN: no such token
    of_seeds = nats.map(math.exp).groupby(level=0)
    return pd.DataFrame({"mean": of_seeds.mean(), "low": of_seeds.min(), "high": of_seeds.max()})


@styled
def comes_back(recovery: pd.DataFrame, positions: pd.DataFrame) -> Figure:
    """A row a model that learned the text from nothing, a line a fraction of heads: held-out perplexity over
    the tokens of the training after the conversion; at its end perplexity by position, of all tokens and of recalled
    ones.

    Raises:
        ValueError: no model of `positions` has a curve of recovery.
    """
    ends = require(positions, "positions")
    ends = ends[ends["trained"].astype(bool)]
    ends = ends.assign(beta=ends["setting"].where(ends["family"] != "original", 0.0))
    curves = recovery_points(recovery)
    curves = curves[curves["arm"].isin(["original", "paper"])]
    models = [(model, rows) for model, rows in by_model(ends) if model in set(curves["model"])]
    if not models:
        raise ValueError("recovery measurements have no model of the positions measurements: nothing comes back")
    figure = Figure(figsize=(WIDTH, 0.8 + 2.3 * len(models)), label="Comes back")
    panels = figure.subplots(len(models), 3, squeeze=False)
    marked = ""
    for row, (model, rows) in zip(panels, models, strict=True):
        mine = curves[curves["model"] == model]
        repeat = _repeat(recovery[recovery["model"] == model], mine)
        start = _axis_of_tokens(row[0], mine, repeat)
        marked = REPEATED if math.isfinite(repeat) else marked
        for place, beta in enumerate(sorted(rows["beta"].unique())):
            look, at = series(place), rows[np.isclose(rows["beta"], beta)]
            seeds = mine[np.isclose(mine["beta"], beta)].groupby("tokens")["perplexity"]
            over_tokens = pd.DataFrame({"mean": seeds.mean(), "low": seeds.min(), "high": seeds.max()})
            of_all = _by_position(at, "negative_log_likelihood", "tokens")
            of_recalled = _by_position(at, "recalled_likelihood", "recalled")
            name = "original, trained likewise" if beta == 0 else f"β = {beta:g}"
            row[0].plot([start], over_tokens["mean"].loc[:0], **look.line | {"markerfacecolor": "white"}, markersize=4)
            for axes, line in zip(row, (over_tokens.loc[1:], of_all, of_recalled), strict=True):
                axes.plot(line.index, line["mean"], **look.line, markersize=4, label=name)
                axes.fill_between(line.index, line["low"], line["high"], color=look.colour, alpha=0.15, linewidth=0)
        for axes, title in zip(row, ("held-out text", "all tokens", "recalled tokens"), strict=True):
            if not any(len(line.get_ydata()) for line in axes.lines):
                axes.text(0.5, 0.5, "none in these windows", transform=axes.transAxes, ha="center", va="center")
                axes.set(title=title, xticks=[], yticks=[])
                continue
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(ScalarFormatter())
            low, high = axes.get_ylim()
            axes.yaxis.set_minor_formatter(ScalarFormatter() if high < 10 * low else NullFormatter())
            axes.set_title(title)
        row[0].set_ylabel(f"{label(model)}: perplexity")
        for axes in row[1:]:
            axes.set_xlabel("tokens after the prompt")
    legend_above(figure, panels[0, 1:2], ncols=4)
    drawn = curves[curves["model"].isin([model for model, _ in models])]
    trainings = pd.concat([rows.groupby(["model", "beta"])["seed"].nunique() for rows in (drawn, ends)])
    means = f"Mean of {from_to(trainings)} trainings, bands from the lowest to the highest. "
    of_seeds = means if trainings.max() > 1 else ""
    add_note(
        figure,
        f"{of_seeds}All read equally many tokens. {marked}Hollow: at the start. Recalled: tokens of rare pairs that "
        "stood before in the window, at least 64 tokens back.",
    )
    return figure


@styled
def tradeoff(recovery: pd.DataFrame) -> Figure:
    """A row a model, a line a method that was trained after the change: held-out perplexity, over that of the original
    trained likewise, against the bytes of its cache, and over the minutes of its training.

    Raises:
        ValueError: no model has more than one changed arm.
    """
    every = require(recovery, "recovery")
    models = [(name, rows) for name, rows in by_model(every) if rows.loc[rows["beta"] > 0, "arm"].nunique() > 1]
    if not models:
        raise ValueError("recovery measurements have no model with several methods: nothing to choose from")
    figure = Figure(figsize=(WIDTH, 1.2 + 3.2 * len(models)), label="Quality, cache and time")
    panels = figure.subplots(len(models), 2, squeeze=False, sharey="row")
    for (model, rows), (by_bytes, by_minutes) in zip(models, panels, strict=True):
        points = _over_original(rows, rows.loc[rows["arm"] == "original", "tokens"].max())
        columns = pd.DataFrame([subject_of(arm).columns(PAPERS_SELECTOR) for arm in points["arm"]], points.index)
        points = points[points["tokens"] > 0].join(columns[["family", "method", "by"]])
        points = points[points["by"].isin(["", PAPERS_SELECTOR])].assign(minutes=points["seconds"] / 60)
        full = points.loc[points["arm"] == "original", CACHE].iloc[0]
        ends = []
        for method, of_method in by_method(points):
            style = line_style(method)
            last = last_points(of_method)
            held = last.groupby(["arm", "beta"])[CACHE].mean() / full
            mean, bars = _means(last, ["arm", "beta"], "perplexity")
            by_bytes.errorbar(held, mean, bars, **style, elinewidth=0.7, capsize=1.5)
            for (_, beta), x, y in zip(mean.index, held, mean, strict=True) if is_ours(method) else []:
                name_beta(by_bytes, beta, (x, y), -12)
            arm, beta = (held - COMMON_BETA).abs().idxmin()
            shown = of_method[(of_method["arm"] == arm) & (of_method["beta"] == beta)]
            course = shown.groupby("tokens")[["minutes", "perplexity"]].mean()
            by_minutes.plot("minutes", "perplexity", data=course, **style)
            end = (course["minutes"].iloc[-1], course["perplexity"].iloc[-1])
            ends.append((method_label(*method), end, style))
        for axes, name in ((by_bytes, f"cache at {LENGTHS[0]:,} tokens, of the original's"), (by_minutes, "minutes")):
            axes.axhline(1, color="0.5", linewidth=0.8, zorder=0)
            axes.set_xlabel(name)
        low, high = points["perplexity_low"].min(), last_points(points)["perplexity_high"]
        by_bytes.set_ylim(low - 0.02, min(high.max(), FAR) * 1.1)
        by_bytes.set_ylabel(f"{label(model)}: perplexity, over\nthe original trained likewise")
        name_lines(by_minutes, ends, 2.4)
    add_note(
        figure,
        "Left: at the end of the training, bars: 95 % interval over the held-out windows, of which each is compared "
        "with itself; of several seeds the mean. Points of a line are fractions of heads. Right: the course of the "
        f"training, at the fraction whose cache is nearest to {COMMON_BETA:g}; what leaves the panel is farther off.",
    )
    return figure
