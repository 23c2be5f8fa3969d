"""Prefill and decode against the length of the context: one line for the backbone and for each beta."""

from collections.abc import Callable, Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from recurformer.render.style import WIDTH, add_note, series, styled
from recurformer.results.frames import groups

MEDIANS = "medians over rounds in which all lines take turns."


def _name(candidate: str) -> str:
    return candidate.replace("beta", "β =")


def _draw(axes: Axes, rows: pd.DataFrame, values: pd.Series) -> None:
    """The lines of one panel; both axes are logarithmic."""
    for place, (candidate, line) in enumerate(groups(rows.assign(value=values).sort_values("tokens"), "candidate")):
        look = series(place)
        axes.plot(
            line["tokens"], line["value"], color=look.colour, linestyle=look.dashes, marker=look.marker,
            label=_name(candidate),
        )  # fmt: skip
    lengths = sorted(rows["tokens"].unique())
    axes.margins(x=0.08)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{tokens:,.0f}" for tokens in lengths])
    axes.set_xlabel("tokens in the context")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 4, 6, 8)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _by_context(rows: pd.DataFrame, values: pd.Series, title: str, label: str, note: str) -> Figure:
    """One panel for each number of threads."""
    panels = groups(rows, "threads", sort=True)
    figure = Figure(figsize=(WIDTH if len(panels) > 1 else 0.7 * WIDTH, 3.2), label=title)
    drawn = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (threads, panel) in zip(drawn, panels, strict=True):
        _draw(axes, panel, values[panel.index])
        axes.set_title(f"{threads} threads" if threads > 1 else "1 thread")
    drawn[0].set_ylabel(label)
    handles = {name: handle for axes in drawn for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
    add_note(figure, f"{rows['model'].iloc[0]} on {rows['device'].iloc[0]}, batch 1; {note}")
    return figure


@styled
def decode(rows: pd.DataFrame) -> Figure:
    """Milliseconds per decoded token, of all models in one type: more lines could not be told apart."""
    rows = rows[(rows.topic == "decode") & (rows.batch == 1) & (rows.baseline == "backbone")]
    return _by_context(rows, 1e3 * rows.median_seconds, "Decode time", "ms per token", MEDIANS)


@styled
def prefill(rows: pd.DataFrame) -> Figure:
    """Seconds of a prompt's forward pass."""
    rows = rows[(rows.topic == "prefill") & (rows.batch == 1)]
    return _by_context(rows, rows.median_seconds, "Prefill time", "seconds", MEDIANS)


@styled
def memory(rows: pd.DataFrame) -> Figure:
    """Most memory beyond the weights during a prompt's forward pass, the cache included."""
    rows = rows[(rows.topic == "prefill") & (rows.batch == 1)]
    note = "the prompt's forward pass: what it takes beyond the weights, its cache included."
    return _by_context(rows, 1e-6 * rows.peak_bytes, "Prefill memory", "peak memory (MB)", note)


FIGURES: dict[str, tuple[str, Callable[[pd.DataFrame], Figure]]] = {
    "bench_decode": ("decode", decode),
    "bench_prefill": ("prefill", prefill),
    "bench_memory": ("prefill", memory),
}
"""File -> the topic that it needs, and how it is drawn."""


def figures(rows: pd.DataFrame) -> Iterator[tuple[str, Figure]]:
    """The figures for which there are measurements."""
    for name, (topic, draw) in FIGURES.items():
        if topic in set(rows.topic):
            yield name, draw(rows)
