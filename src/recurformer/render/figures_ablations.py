"""The figures that the paper's reviewers asked for."""

import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from recurformer.paper import label
from recurformer.render.panels import (
    LOOKS,
    MARKERS,
    OURS,
    draw_line,
    is_ours,
    notes_of,
    nth_look,
    panels_of,
    quality_figure,
    say_not_run,
    show_score,
)
from recurformer.render.style import SERIES, WIDTH, Series, add_note, grid, legend_above, show_fractions, styled
from recurformer.results.frames import by_model, groups, in_order, require, require_values
from recurformer.results.learned import needed_h_gq
from recurformer.results.scores import (
    HASHHOP_SIZES,
    NEEDLE,
    PAPERS_SELECTOR,
    PASSKEY,
    SIZE_UNITS,
    UNITS,
    agreement,
    as_paper_does,
    at_common_setting,
    by_method,
    changed_fraction,
    default_setting,
    identified,
    method_label,
    of,
    one_unit,
    original,
    scores,
    why_not_run,
)
from recurformer.study.ablations import COMMON_BETA

ablation_mixers = quality_figure(
    lambda points: pd.concat([of(points, "original").assign(setting=0.0), of(points, "mixer")]),
    "setting",
    "heads replaced, β",
    "Mixers on the same heads",
    "At each β all replace the same heads: those with the highest RA-I.",
)


SELECTORS = {
    "ra_i": ("RA-I (paper)", Series(OURS, (0, ()), "o")),
    "mean_rr": ("mean recency ratio", Series(SERIES[3].colour, (0, (5, 1.5)), "s")),
    "inverse_ra_i": ("inverse RA-I", Series("0.45", (0, (1.5, 1)), "X")),
    "random": ("random", Series("0.45", (0, (5, 1.5)), "d")),
    "retrieval": ("retrieval probe", nth_look(SERIES[4].colour, 2)),
    "echo": ("echo score", nth_look(SERIES[4].colour, 3)),
    "induction": ("induction score", nth_look(SERIES[4].colour, 4)),
    "price": ("price of a window", nth_look(SERIES[1].colour, 2)),
    "kvzip": ("KVzip's score", nth_look(SERIES[4].colour, 5)),
    "gates": ("DuoAttention's gates", nth_look(SERIES[4].colour, 6)),
    "mixer_price": ("price of the mixer", nth_look(SERIES[1].colour, 3)),
}
"""Selector -> its name in print and its look."""


def _selector_look(selector: str) -> tuple[str, Series]:
    """Name in print and look; of a selector that is not known its own name."""
    return SELECTORS.get(selector, (selector, Series(SERIES[5].colour, (0, ()), MARKERS[6])))


def _by_selector(points: pd.DataFrame) -> pd.DataFrame:
    """The points by selector, of the mixer that has most of them: trained rather than not, Mamba rather than others."""
    by_mixer = groups(points[points["family"] == "mixer"], ["trained", "method"])
    several = [(rows["by"].nunique(), trained, method == "mamba", method) for (trained, method), rows in by_mixer]
    selectors, trained, _, method = max(several, default=(0, False, False, ""))
    if selectors < 2:
        return original(points, trained=False)
    of_mixer = points[(points["family"] == "mixer") & (points["method"] == method) & (points["trained"] == trained)]
    return pd.concat([original(points, trained), of_mixer])


def _draw_agreements(pair: list[Axes], model: str, rows: pd.DataFrame) -> None:
    """One bar a selector: the mean over its seeds, and each seed as a point."""
    names = [name for name in in_order(rows["by"], SELECTORS) if name != PAPERS_SELECTOR]
    for axes, column, title, shown in (
        (pair[0], "rank_correlation", "order of heads", "rank correlation with RA-I"),
        (pair[1], "overlap", "choice of heads", f"fraction of RA-I's choice, β = {COMMON_BETA:g}"),
    ):
        for place, by in enumerate(names):
            values = rows[rows["by"] == by][column]
            axes.barh(place, values.mean(), color=_selector_look(by)[1].colour, height=0.6, alpha=0.85)
            if len(values) > 1:
                axes.plot(values, [place] * len(values), "o", color="black", markersize=3)
            axes.annotate(
                f"{values.mean():.2f}", (max(float(values.max()), 0.0), place), (4, 0), textcoords="offset points",
                va="center", fontsize=7.5,
            )  # fmt: skip
        axes.set_yticks(range(len(names)), [_selector_look(by)[0] for by in names])
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.axvline(0, color="0.3", linewidth=0.8)
        axes.set_xlim(min(-0.05, float(rows[column].min()) * 1.05) if column == "rank_correlation" else 0, 1.15)
        axes.set_xlabel(shown)
        axes.set_title(f"{label(model)}: {title}")
    pair[1].axvline(COMMON_BETA, color="0.3", linestyle=SERIES[2].dashes, linewidth=1)


@styled
def ablation_selectors(
    compared_hashhop: pd.DataFrame | None = None,
    needle: pd.DataFrame | None = None,
    continuation: pd.DataFrame | None = None,
    head_scores: pd.DataFrame | None = None,
) -> Figure:
    """Quality by the fraction of heads replaced, one line a selector, and how far each selector agrees with RA-I.

    Raises:
        ValueError: no RA-I among the scores.
    """
    frames = {"compared_hashhop": compared_hashhop, "needle": needle, "continuation": continuation}
    given = {kind: frame for kind, frame in frames.items() if frame is not None}
    panels = panels_of(given, _by_selector) if given or head_scores is None else []
    models = [] if head_scores is None else by_model(agreement(require(head_scores, "head_scores")))
    lines = (len(panels) + 1) // 2 + len(models)
    figure = Figure(figsize=(WIDTH, 1.4 + 2.4 * lines), label="RA-I against other selectors")
    every = list(figure.subplots(lines, 2, squeeze=False).ravel())
    for panel, axes in zip(panels, every, strict=False):
        axes.set_title(panel.title)
        if panel.reason:
            say_not_run(axes)
            continue
        selected = panel.points[panel.points["family"] != "original"]
        for by in in_order(selected["by"], SELECTORS):
            name, look = _selector_look(by)
            width, size, order = (2.2, 7, 2) if by == PAPERS_SELECTOR else (1.2, 5, 3)  # the wide one hides no other
            rows = selected[selected["by"] == by]
            draw_line(
                axes, panel.measure, rows, "setting", **look.line, label=name,
                markerfacecolor=look.colour if rows["trained"].all() else "white", linewidth=width,
                markersize=size, zorder=order,
            )  # fmt: skip
        unchanged = panel.measure.shown(panel.points[panel.points["family"] == "original"]["mean"].max())
        axes.axhline(unchanged, color=SERIES[0].colour, linestyle=SERIES[2].dashes, linewidth=1, label="original")
        axes.set_xlabel("heads replaced, β")
        axes.set_xticks(sorted(selected["setting"].unique()))
        show_score(axes, panel, "setting", lambda point: _selector_look(point["by"])[0])
    for place, (model, of_model) in enumerate(models, lines - len(models)):
        _draw_agreements(every[2 * place : 2 * place + 2], model, of_model)
    if len(panels) % 2:
        every[len(panels)].set_axis_off()
    legend_above(figure, every, ncols=4)
    notes = notes_of(panels) if panels else []
    replacing = {name for panel in panels for name in panel.points.loc[panel.points["family"] == "mixer", "method"]}
    if replacing:
        notes.append(f"Heads are replaced by: {', '.join(method_label('mixer', name) for name in sorted(replacing))}.")
    if models:
        notes.append("Choice of heads: counted over single heads; points: seeds of the random choice; dotted: chance.")
    add_note(figure, " ".join(notes))
    return figure


def _lines_of_sizes(points: pd.DataFrame) -> dict[str, tuple[dict[str, Any], pd.DataFrame]]:
    """Name -> look and points of each method at each fraction: one hue a method, one marker and dash a fraction."""
    lines: dict[str, tuple[dict[str, Any], pd.DataFrame]] = {}
    for method, rows in by_method(points):
        hue = OURS if is_ours(method) else LOOKS[method[0]][1]
        for place, (setting, at_setting) in enumerate(groups(rows, "setting", sort=True)):
            at = {"original": "", "eviction": f", {setting:g} of the cache"}.get(method[0], f", β = {setting:g}")
            look = {**nth_look(hue, place).line, "markersize": 5, "linewidth": 1.4}
            lines[method_label(*method) + at] = (look, at_setting)
    return lines


@styled
def ablation_sizes(hashhop_sizes: pd.DataFrame) -> Figure:
    """h_gq over the prompt's length, at the hops of the training, and over the hops, at its length: a row a model."""
    rows = identified(hashhop_sizes, HASHHOP_SIZES.kind)
    points = pd.concat([
        scores(of_size, HASHHOP_SIZES).assign(
            hops=hops, size=size, form=form, as_trained=bool(of_size["as_trained"].iloc[0])
        )
        for (hops, size, form), of_size in groups(rows, ["hops", "size", "form"])
    ], ignore_index=True)  # fmt: skip
    models, every_line = by_model(points), _lines_of_sizes(points)
    figure = Figure(figsize=(WIDTH + 0.8, 1.6 + 2.6 * len(models)), label="HashHop at other lengths and hops")
    panels = figure.subplots(len(models), 2, squeeze=False)
    for (model, of_model), (by_size, by_hops) in zip(models, panels, strict=True):
        trained = of_model[of_model["as_trained"]]
        unit_of_size = SIZE_UNITS[of_model["form"].iloc[0]]
        for axes, column, kept, axis, unit in (
            (by_size, "size", "hops", f"{unit_of_size} in the prompt", "hops"),
            (by_hops, "hops", "size", "hops asked for", unit_of_size),
        ):
            axes.set_title(f"{label(model)}: {', '.join(f'{size:,}' for size in trained[kept].unique())} {unit}")
            shown = of_model[of_model[kept].isin(trained[kept])]
            if shown[column].nunique() < 2:
                say_not_run(axes)
                continue
            if trained[column].nunique() == 1:
                axes.axvline(trained[column].iloc[0], color="0.5", linewidth=6, alpha=0.25, zorder=0)
            for look, of_line in every_line.values():
                if len(part := of_line[of_line.index.isin(shown.index)]):
                    draw_line(axes, HASHHOP_SIZES, part, column, **look)
            axes.axhline(needed_h_gq(model), color="0.5", linewidth=0.8, linestyle=":", zorder=1)
            axes.set_ylim(-0.04, 1.06)
            axes.set_ylabel(HASHHOP_SIZES.axis)
            axes.locator_params(axis="x", integer=True)
            axes.set_xlabel(axis)
    handles = [Line2D([], [], label=name, **look) for name, (look, _) in every_line.items()]
    figure.legend(handles=handles, loc="outside right center", fontsize=7.5, handlelength=2.6)
    add_note(
        figure,
        f"Bars: 95 % intervals over {int(points['samples'].min()):,} samples or more a point. Grey: the size of the "
        "training. Dotted: an original below it decides nothing about its variants.",
    )
    return figure


FEW = 5
"""Passkeys in a cell, fewer than which are drawn pale."""


@styled
def ablation_needle(needle: pd.DataFrame) -> Figure:
    """Fraction of passkeys found by depth (downwards) and length, one heat map a method at about the same cache.

    Raises:
        ValueError: no row of a passkey.
    """
    rows = identified(needle, "needle")
    require_values(rows, "needle", "task", [PASSKEY])
    passkeys = rows[rows["task"] == PASSKEY]
    reasons = {model: why_not_run(points, NEEDLE) for model, points in by_model(scores(passkeys, NEEDLE))}
    shown = [model for model, reason in reasons.items() if not reason]
    passkeys = pd.concat([original(passkeys, trained=False), passkeys[passkeys["family"] != "original"]])
    maps = [
        (model, *of_method)
        for model, of_model in by_model(passkeys)
        for of_method in by_method(at_common_setting(as_paper_does(of_model)))
        if model in shown
    ]
    figure, every, columns = grid(
        "Needles in a haystack", len(maps), 5, lambda _, lines: (WIDTH, 1.1 + 1.65 * lines), sharey=True
    )
    notes = []
    for (model, method, of_method), axes in zip(maps, every, strict=False):
        sums = of_method.groupby(["depth", "length"])[["correct", "queries"]].sum().astype(int)
        counts = sums["correct"].astype(str) + "/" + sums["queries"].astype(str)
        found = (sums["correct"] / sums["queries"]).unstack("length")  # (depths, lengths)
        image = show_fractions(axes, found, counts.unstack("length"), size=6.5, pale=sums["queries"].max() < FEW)
        axes.set_xticks(range(found.shape[1]), [f"{length:,}" for length in found.columns], rotation=60, fontsize=7)
        axes.set_yticks(range(found.shape[0]), [f"{depth:.0%}" for depth in found.index], fontsize=7)
        name = "\n".join(textwrap.wrap(method_label(*method), 16))
        title = f"{name}\ncache {of_method['ratio'].mean():.2f}"
        axes.set_title(
            f"{label(model)}\n{title}" if len(shown) > 1 else title,
            fontsize=7.5, weight="bold" if is_ours(method) else "normal",
        )  # fmt: skip
    for axes in every[: len(maps) : columns]:
        axes.set_ylabel("depth", fontsize=8)
    for axes in every[max(len(maps) - columns, 0) : len(maps)]:
        axes.set_xlabel("tokens", fontsize=8)
    if maps:
        colours = ScalarMappable(image.norm, image.cmap)  # without what makes a map pale
        figure.colorbar(colours, ax=figure.axes, shrink=0.7).set_label("passkeys found")
        notes.append(
            f"{', '.join(map(label, shown))}. Numbers: passkeys found of those asked for. Pale: fewer than {FEW} a "
            "cell, which decide nothing. Each method at the setting nearest to half of the cache or of the heads; "
            "cache: held cache as a fraction of the original's. A model is trained if its method trains; the original "
            "is as it came."
        )
    else:
        say_not_run(every[0])
    notes += [f"Not-run: {reason}." for reason in reasons.values() if reason]
    add_note(figure, " ".join(notes))
    return figure


@styled
def ablation_ra_i(ra_i_settings: pd.DataFrame) -> Figure:
    """Fraction of the chosen heads that changes with α (downwards) and k (to the right): a row a model, a panel a β."""
    rows = one_unit(require(ra_i_settings, "ra_i_settings"))
    rows = rows.assign(changed=changed_fraction(rows))
    models = by_model(rows)
    betas = sorted(rows["beta"].unique())
    places = np.linspace(0, len(betas) - 1, min(len(betas), 4)).round().astype(int)
    shown = [betas[place] for place in places]
    figure = Figure(figsize=(WIDTH, 1.0 + 2.2 * len(models)), label="Sensitivity of RA-I")
    panels = figure.subplots(len(models), len(shown), squeeze=False, sharex="row", sharey="row")
    top = max(float(rows["changed"].max()), 0.1)
    notes = []
    for (model, of_model), line in zip(models, panels, strict=True):
        default = default_setting(of_model)
        for beta, axes in zip(shown, line, strict=True):
            at_beta = of_model[of_model["beta"] == beta]
            matrix = at_beta.pivot_table(index="threshold", columns="window", values="changed")
            image = show_fractions(axes, matrix, (100 * matrix).map("{:.0f}".format), size=7.5, top=top)
            axes.set_xticks(range(matrix.shape[1]), [f"{window:g}" for window in matrix.columns])
            axes.set_yticks(range(matrix.shape[0]), [f"{threshold:g}" for threshold in matrix.index])
            window, threshold = np.argmax(matrix.columns == default[0]), np.argmax(matrix.index == default[1])
            corner = (float(window) - 0.47, float(threshold) - 0.47)
            axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=SERIES[5].colour, linewidth=2))
            axes.set_xlabel("window k (tokens)")
            axes.set_title(f"{label(model)}\nβ = {beta:g}")
        line[0].set_ylabel("threshold α")
        others = of_model[of_model["changed"] > 0]
        correlation = f", lowest rank correlation {others['rank_correlation'].min():.2f}" if len(others) else ""
        units = " or ".join(UNITS.get(unit, unit) for unit in sorted(of_model["unit"].unique()))
        defaults = f"default k = {default[0]:g}, α = {default[1]:g}"
        notes.append(f"{label(model)}: chosen are {units}, {defaults}{correlation}.")
    figure.colorbar(image, ax=panels, shrink=0.85).set_label("chosen heads that change (fraction)")
    notes.append("Numbers: per cent. Framed: the default, against which the others are compared.")
    add_note(figure, " ".join(notes))
    return figure
