"""Quality against generated length: by position in a continuation, and by hop in HashHop."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from recurformer.paper import label
from recurformer.render.ablations import (
    CONTINUATION,
    HASHHOP,
    Measure,
    as_paper_does,
    identified,
    scores,
    why_not_run,
)
from recurformer.render.figures.ablations.looks import (
    HEADINGS,
    add_methods_legend,
    by_method,
    line_style,
    say_not_run,
)
from recurformer.render.measurements import by_model
from recurformer.render.style import WIDTH, add_note, grid, styled

COMMON_SETTING = 0.5
"""β and the share of the cache kept that are compared, or the measured ones that are next to it."""
LINEAR_NATS = 0.1
WIDE_NATS = 1.0
"""Beyond this loss the axis is linear up to `LINEAR_NATS` and logarithmic above."""
SHOWN_APART = 0.01
"""Shares of the cache within a family that differ by less are given as one."""
NOTE = (
    "Continuations are the articles' own text, in parts of equal length, drawn at their first position. Where losses "
    f"differ much, the axis is logarithmic above {LINEAR_NATS:g}. A model is trained if its method trains."
)


def at_common_setting(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of every method at its setting nearest to `COMMON_SETTING`, trained where it was trained, RA-I only; the
    original as it came and trained.
    """
    paper = as_paper_does(rows)
    distance = (paper["setting"] - COMMON_SETTING).abs()
    nearest = distance.groupby([paper[key] for key in ("model", "family", "method")]).transform("min")
    found = paper[distance == nearest]
    first = found["setting"].groupby([found[key] for key in ("model", "family", "method")]).transform("min")
    return found[found["setting"] == first]


def loss_by_position(rows: pd.DataFrame) -> pd.Series:
    """Nats per token at each position after the prompt."""
    sums = rows.groupby("position")[["negative_log_likelihood", "tokens"]].sum()
    return sums["negative_log_likelihood"] / sums["tokens"]


def _draw_positions(axes: Axes, rows: pd.DataFrame) -> None:
    originals = rows[rows["family"] == "original"]
    lowest, largest = 0.0, 0.0
    for method, found in by_method(rows):
        if method[0] == "original":
            continue
        likewise = originals[originals["trained"] == found["trained"].iloc[0]]
        original = originals if likewise.empty else likewise
        # of the same windows: one window of text is harder than another by more than the methods differ
        shared = set(found["window"]) & set(original["window"])
        extra = loss_by_position(found[found["window"].isin(shared)])
        extra = (extra - loss_by_position(original[original["window"].isin(shared)])).dropna()
        lowest, largest = min(lowest, float(extra.min())), max(largest, float(extra.max()))
        axes.plot(extra.index, extra, **line_style(method))
    axes.axhline(0, **line_style(("original", "full")) | {"marker": ""})
    if largest > WIDE_NATS:
        axes.set_yscale("symlog", linthresh=LINEAR_NATS)
        axes.set_ylim(lowest - LINEAR_NATS / 4, 1.3 * largest)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("position after the prompt (tokens)")
    axes.set_ylabel("loss above the original's\n(nats per token)")


def _draw_hops(axes: Axes, rows: pd.DataFrame) -> None:
    """Share of samples that are right up to each hop, from the first."""
    for method, found in by_method(rows):
        hops = np.arange(1, int(found["hops"].max()) + 1)
        share = [(found["correct"] >= hop)[found["hops"] >= hop].mean() for hop in hops]
        axes.plot(hops, share, **line_style(method))
    axes.set_xlabel("hop")
    axes.set_ylabel("samples right up to the hop")
    axes.set_ylim(-0.04, 1.06)
    axes.locator_params(axis="x", integer=True)


def _caches(rows: pd.DataFrame) -> str:
    """The shares of the cache that each family held after the prompt, RecurFormer apart."""
    families = rows["family"].map(HEADINGS).where(rows["method"] != "mamba", "RecurFormer")
    held = rows["ratio"].groupby(families, sort=False).agg(["min", "max"]).drop(index="", errors="ignore")
    return "; ".join(
        f"{name} {low:.2f}" + (f" to {high:.2f}" if high - low >= SHOWN_APART else "")
        for name, low, high in held.itertuples()
    )


def _settings(rows: pd.DataFrame) -> str:
    """From the lowest to the highest that was asked for, of each kind of setting."""
    families = {"budget": ["eviction"], "β": ["mixer", "layers"], "share of KV heads": ["pooled"]}
    asked = {name: rows.loc[rows["family"].isin(some), "setting"] for name, some in families.items()}
    return ", ".join(
        f"{name} {' to '.join(f'{value:.2g}' for value in dict.fromkeys([found.min(), found.max()]))}"
        for name, found in asked.items()
        if len(found)
    )


@styled
def ablation_length(continuation: pd.DataFrame | None = None, ablation_hashhop: pd.DataFrame | None = None) -> Figure:
    """Quality against generated length, every method at about the same share: one panel a measure and model.

    Continuations: nats per token above the original's, by position. HashHop: share of samples right up to each hop.
    """
    parts: list[tuple[Measure, str, pd.DataFrame, str]] = []
    for measure, frame in ((CONTINUATION, continuation), (HASHHOP, ablation_hashhop)):
        if frame is not None:
            points = scores(frame, measure)
            parts += [
                (measure, model, at_common_setting(rows), why_not_run(points[points["model"] == model], measure))
                for model, rows in by_model(measure.chosen(identified(frame, measure.kind)))
            ]
    if not parts:
        raise ValueError("no continuation, ablation_hashhop measurements to show")
    figure, every, _ = grid(
        "Quality against generated length", len(parts), 2,
        lambda _, lines: (WIDTH + 0.8, max(1.2 + 2.6 * lines, 5.9)),
    )  # fmt: skip
    notes = []
    for (measure, model, rows, reason), axes in zip(parts, every, strict=True):
        draw, name = (_draw_positions, "continuation") if measure is CONTINUATION else (_draw_hops, "HashHop")
        axes.set_title(f"{label(model)}: {name}")
        if reason:
            say_not_run(axes)
            notes.append(f"Not-run: {reason}.")
            continue
        draw(axes, rows)
        size = int(scores(rows, measure)["samples"].min())
        notes.append(
            f"{label(model)}, {name}: {_settings(rows)}; {size:,} samples or more a line; cache held after "
            f"the prompt: {_caches(rows)}."
        )
    add_methods_legend(figure, {method for _, _, rows, _ in parts for method, _ in by_method(rows)})
    add_note(figure, " ".join([*notes, NOTE]))
    return figure
