"""Which heads are replaced: RA-I against other selectors, in quality and in the heads they choose."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recurformer.paper import label
from recurformer.render.figures.ablations.looks import MARKERS, OURS, nth_look, say_not_run
from recurformer.render.figures.ablations.panels import Panel, draw_line, notes_of, panels_of, show_score
from recurformer.render.style import SERIES, WIDTH, Series, add_note, legend_above, styled
from recurformer.results.frames import by_model, groups, require
from recurformer.results.scores import PAPERS_SELECTOR, agreement, method_label, original
from recurformer.study.ablations import COMMON_BETA

SELECTORS = {
    "ra_i": ("RA-I (paper)", Series(OURS, (0, ()), "o")),
    "mean_rr": ("mean recency ratio", Series(SERIES[3].colour, (0, (5, 1.5)), "s")),
    "inverse_ra_i": ("inverse RA-I", Series("0.45", (0, (1.5, 1)), "X")),
    "random": ("random", Series("0.45", (0, (5, 1.5)), "d")),
    "retrieval": ("retrieval probe", nth_look(SERIES[4].colour, 2)),
    "echo": ("echo score", nth_look(SERIES[4].colour, 3)),
    "induction": ("induction score", nth_look(SERIES[4].colour, 4)),
    "sensitivity": ("sensitivity", nth_look(SERIES[1].colour, 1)),
}
"""Selector -> its name in print and its look."""


def look_of(selector: str) -> tuple[str, Series]:
    """Name in print and look; of a selector that is not known its own name."""
    return SELECTORS.get(selector, (selector, Series(SERIES[5].colour, (0, ()), MARKERS[6])))


def selectors_in_order(names: pd.Series) -> list[str]:
    """The selectors there are, as `SELECTORS` lists them; those that are not known come last."""
    found = list(dict.fromkeys(names))
    return [name for name in SELECTORS if name in found] + [name for name in found if name not in SELECTORS]


def _chosen(points: pd.DataFrame) -> pd.DataFrame:
    """The points by selector, of the mixer that has most of them: trained rather than not, Mamba rather than others."""
    by_mixer = groups(points[points["family"] == "mixer"], ["trained", "method"])
    several = [(rows["by"].nunique(), trained, method == "mamba", method) for (trained, method), rows in by_mixer]
    selectors, trained, _, method = max(several, default=(0, False, False, ""))
    if selectors < 2:
        return original(points, trained=False)
    of_mixer = points[(points["family"] == "mixer") & (points["method"] == method) & (points["trained"] == trained)]
    return pd.concat([original(points, trained), of_mixer])


def _draw_quality(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title)
    if panel.reason:
        say_not_run(axes)
        return
    selected = panel.points[panel.points["family"] != "original"]
    for by in selectors_in_order(selected["by"]):
        name, look = look_of(by)
        width, size, order = (2.2, 7, 2) if by == PAPERS_SELECTOR else (1.2, 5, 3)  # the wide one hides no other
        rows = selected[selected["by"] == by]
        draw_line(
            axes, panel.measure, rows["setting"], rows, color=look.colour, linestyle=look.dashes, marker=look.marker,
            label=name, markerfacecolor=look.colour if rows["trained"].all() else "white", linewidth=width,
            markersize=size, zorder=order,
        )  # fmt: skip
    unchanged = panel.points[panel.points["family"] == "original"]["mean"].max()
    axes.axhline(panel.measure.shown(unchanged), color=SERIES[0].colour, linestyle=SERIES[2].dashes, linewidth=1,
        label="original")  # fmt: skip
    axes.set_xlabel("heads replaced, β")
    axes.set_xticks(sorted(selected["setting"].unique()))
    show_score(axes, panel)


def _draw_agreement(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    """One bar a selector: the mean over its seeds, and each seed as a point."""
    names = [name for name in selectors_in_order(rows["by"]) if name != PAPERS_SELECTOR]
    for place, by in enumerate(names):
        look = look_of(by)[1]
        values = rows[rows["by"] == by][column]
        axes.barh(place, values.mean(), color=look.colour, height=0.6, alpha=0.85)
        if len(values) > 1:
            axes.plot(values, [place] * len(values), "o", color="black", markersize=3)
        axes.annotate(
            f"{values.mean():.2f}", (max(float(values.max()), 0.0), place), (4, 0), textcoords="offset points",
            va="center", fontsize=7.5,
        )  # fmt: skip
    axes.set_yticks(range(len(names)), [look_of(by)[0] for by in names])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.axvline(0, color="0.3", linewidth=0.8)


def _draw_agreements(pair: list[Axes], model: str, rows: pd.DataFrame) -> None:
    correlation, overlap = pair
    _draw_agreement(correlation, rows, "rank_correlation")
    correlation.set_xlim(min(-0.05, float(rows["rank_correlation"].min()) * 1.05), 1.15)
    correlation.set_xlabel("rank correlation with RA-I")
    _draw_agreement(overlap, rows, "overlap")
    overlap.set_xlim(0, 1.15)
    overlap.axvline(COMMON_BETA, color="0.3", linestyle=SERIES[2].dashes, linewidth=1)
    overlap.set_xlabel(f"share of RA-I's choice, β = {COMMON_BETA:g}")
    for axes, shown in zip(pair, ("order of heads", "choice of heads"), strict=True):
        axes.set_title(f"{label(model)}: {shown}")


@styled
def ablation_selectors(
    ablation_hashhop: pd.DataFrame | None = None,
    needle: pd.DataFrame | None = None,
    continuation: pd.DataFrame | None = None,
    head_scores: pd.DataFrame | None = None,
) -> Figure:
    """Quality by the share of heads replaced, one line a selector, and how far each selector agrees with RA-I.

    Raises:
        ValueError: no RA-I among the scores.
    """
    frames = {"ablation_hashhop": ablation_hashhop, "needle": needle, "continuation": continuation}
    given = {kind: frame for kind, frame in frames.items() if frame is not None}
    panels = panels_of(given, _chosen) if given or head_scores is None else []
    models = [] if head_scores is None else by_model(agreement(require(head_scores, "head_scores")))
    lines = (len(panels) + 1) // 2 + len(models)
    figure = Figure(figsize=(WIDTH, 1.4 + 2.4 * lines), label="RA-I against other selectors")
    every = list(figure.subplots(lines, 2, squeeze=False).ravel())
    for panel, axes in zip(panels, every, strict=False):
        _draw_quality(axes, panel)
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
