"""The result of `recurformer adapt` for people: a model card and two pictures, from one measurement file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from matplotlib.figure import Figure

from recurformer.render.page import render_page
from recurformer.render.style import WIDTH, add_note, save_figure, series, show_heads, styled
from recurformer.results.words import NOTHING, estimated, number

Adaptation = Mapping[str, Any]
"""The content of adaptation.json."""

STAGE_LABELS = {
    "original": "original",
    "converted": "heads replaced, not trained",
    "calibrated": "calibrated (closed form)",
    "transferred": "transfer, layer by layer",
    "distilled": "distillation, end to end",
    "taken back": "the weights from before the training: it did not lower the divergence",
    "adapted": "adapted: the final model",
}
"""Name of a stage -> its words in the card."""
MIXERS = {
    "mamba": "Mamba blocks, which keep a state of constant size",
    "window": "attention to a window, whose tokens and bits are chosen for each group of heads by their price",
    "window_state": "attention to a short window, with a recurrent state of all tokens",
}
"""Mixer -> its words in the card."""
COMPARED = ("", "original", "adapted", "adapted / original")
STEPS = ("after", "tokens seen", "perplexity", "divergence")
RAN = {"prefill": "prefill of {} tokens, tokens/s", "decode": "decoding of {} tokens, tokens/s"}


def write_adaptation(folder: str | Path, adaptation: Adaptation) -> None:
    """Write adaptation.json, README.md and its two pictures beside a model.

    Args:
        folder: of the model.
        adaptation: what `recurformer.recover.adapt.adapt` measured, and under "base" the facts of its original
            (`recurformer.data.backbones.base_facts`).
    """
    folder = Path(folder)
    (folder / "adaptation.json").write_text(json.dumps(adaptation, indent=1) + "\n", encoding="utf-8")
    save_figure(
        price_curve(adaptation) if adaptation.get("budget") else recovery_curve(adaptation), folder / "quality.png"
    )
    save_figure(head_map(adaptation), folder / "heads.png")
    (folder / "README.md").write_text(card(adaptation), encoding="utf-8")


def card(adaptation: Adaptation) -> str:
    """Markdown with the front matter that the model hub reads: description, numbers, loading."""
    base, mixer = adaptation["base"], adaptation["recipe"]["mixer"]
    front: dict[str, Any] = {"library_name": "transformers", "tags": ["recurformer", mixer]}
    if base["license"]:
        front["license"] = base["license"]
    if base["hub"]:
        front["base_model"] = base["name"]
    return render_page(
        "card.md.j2",
        **{"budget": None, **adaptation},
        front=yaml.safe_dump(front, sort_keys=False),
        percent=f"{100 * replaced_fraction(adaptation):.0f}",
        mixer=MIXERS[mixer],
        tables=[("Before and after", COMPARED, compared(adaptation)), ("Step by step", STEPS, steps(adaptation))],
        took=f"{sum(adaptation['seconds'].values()) / 60:.1f}",
    )


def stage(adaptation: Adaptation, name: str) -> Adaptation:
    """The quality after one step."""
    return next(row for row in adaptation["stages"] if row["stage"] == name)


def replaced_fraction(adaptation: Adaptation) -> float:
    """Heads replaced over all heads: beta, rounded to whole groups."""
    heads = adaptation["heads"]
    return sum(map(len, heads)) / (len(heads) * adaptation["attention_heads"])


def compared(adaptation: Adaptation) -> list[tuple[str, ...]]:
    """Before and after: quantity, original, adapted, ratio."""
    before, after = stage(adaptation, "original"), stage(adaptation, "adapted")
    tokens = f"{before['windows']} held-out windows of {adaptation['recipe']['tokens']:,} tokens"
    return [
        (
            f"perplexity on {tokens}", _with_interval(before, "perplexity", 2), _with_interval(after, "perplexity", 2),
            number(after["perplexity"] / before["perplexity"], 3),
        ),
        ("divergence from the original there, nats a token", "0", _with_interval(after, "divergence", 3), NOTHING),
        *(
            (f"divergence up to token {part['stop']:,}", "0", _with_interval(part, "divergence", 3), NOTHING)
            for part in after.get("parts", [])
        ),
        *(
            (f"passkeys found in {one['length']:,} tokens", _answers(one), _answers(other), NOTHING)
            for one, other in zip(*(adaptation["passkeys"][name] for name in ("original", "adapted")), strict=True)
        ),
        *(
            (
                f"cache at {row['length']:,} tokens, MB", number(row["original"] / 1e6, 1),
                number(row["adapted"] / 1e6, 1), number(row["adapted"] / row["original"], 3),
            )
            for row in adaptation["cache"]
        ),
        *(
            (
                RAN[row["phase"]].format(row["tokens"]), number(row["original"], 1), number(row["adapted"], 1),
                number(row["ratio"], 2),
            )
            for row in adaptation["speed"]
        ),
        ("parameters", *(f"{count:,}" for count in adaptation["parameters"]),
         number(adaptation["parameters"][1] / adaptation["parameters"][0], 3)),
    ]  # fmt: skip


def steps(adaptation: Adaptation) -> list[tuple[str, ...]]:
    """Quality after each step: step, tokens seen, perplexity, divergence from the original."""
    return [
        (
            STAGE_LABELS[row["stage"]], number(row["tokens"], 0), _with_interval(row, "perplexity", 2),
            _with_interval(row, "divergence", 3),
        )
        for row in adaptation["stages"]
    ]  # fmt: skip


def _with_interval(row: Adaptation, name: str, decimals: int) -> str:
    low, high = row[f"{name}_interval"]
    return estimated(row[name], low, high, decimals)


def _answers(row: Adaptation) -> str:
    return f"{row['found']} of {row['asked']}" if "asked" in row else "not measured"


@styled
def head_map(adaptation: Adaptation) -> Figure:
    """How recency-aware each head is, or what its group keeps (left), and which ones were replaced (right)."""
    replaced = np.zeros((len(adaptation["heads"]), adaptation["attention_heads"]))
    for layer, heads in enumerate(adaptation["heads"]):
        replaced[layer, heads] = 1
    if not adaptation.get("budget"):
        fractions, measured = np.array(adaptation["ra_i"]), "recency-aware windows, fraction"
        explained = "fraction of windows in which the head looks mainly at recent tokens"
    else:
        tokens, each = adaptation["recipe"]["tokens"], adaptation["attention_heads"] // adaptation["kv_heads"]
        windows = np.array(adaptation["windows"], dtype=float)  # NaN keeps all
        kept = np.where(np.isnan(windows), 1, windows / tokens) * np.array(adaptation["bits"]) / 16
        fractions, measured = kept.repeat(each, 1), "tokens times bits kept, fraction"
        explained = f"fraction of the bits of {tokens:,} tokens that the head keeps"
    figure = Figure(figsize=(WIDTH, 0.9 + min(5.0, 0.6 + 0.14 * len(fractions))), label="Head map")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, matrix, title in ((left, fractions, measured), (right, replaced, "replaced heads")):
        image = show_heads(axes, matrix, title, None if axes is left else "Greys")
        if axes is left:
            figure.colorbar(image, ax=axes, shrink=0.8)
    left.set_ylabel("layer")
    add_note(figure, f"Left: {explained}. Right: dark heads are replaced, by one mixer a layer. Layers and heads count "
             "from 0.")  # fmt: skip
    return figure


@styled
def price_curve(adaptation: Adaptation) -> Figure:
    """Estimated divergence over the cache that is kept, the chosen point, and what was measured there."""
    figure = Figure(figsize=(WIDTH * 0.6, 3.0), label="Price")
    axes = figure.subplots()
    fractions, costs = np.array([point for point in adaptation["estimated"] if point[1] > 0]).T
    style, chosen = series(1), fractions == adaptation["budget"]
    axes.plot(fractions, costs, color=style.colour, marker=style.marker, linestyle=style.dashes, label="estimated")
    axes.plot(fractions[chosen], costs[chosen], "o", color=style.colour, markersize=9, fillstyle="none", label="chosen")
    measured = stage(adaptation, "adapted")
    if measured["divergence"] > 0:
        axes.plot(adaptation["budget"], measured["divergence"], "x", color=series(2).colour, label="measured")
    axes.set_xscale("log", base=2)
    named = fractions[~chosen] if len(fractions) > 1 else fractions  # the chosen one has a mark
    axes.set_xticks(named, [f"{fraction:g}" for fraction in named])
    axes.set_yscale("log")
    axes.set_xlabel(f"cache at {adaptation['recipe']['tokens']:,} tokens, fraction of the original's")
    axes.set_ylabel("divergence, nats a token")
    axes.legend()
    return figure


@styled
def recovery_curve(adaptation: Adaptation) -> Figure:
    """Divergence from the original and perplexity on held-out windows, over the tokens seen."""
    figure = Figure(figsize=(WIDTH, 3.0), label="Recovery")
    panels = figure.subplots(1, 2)
    rows = [row for row in adaptation["stages"] if row["stage"] != "original"]
    tokens = np.array([row["tokens"] for row in rows]) / 1000
    for axes, name in zip(panels, ("divergence", "perplexity"), strict=True):
        values = np.array([row[name] for row in rows])
        low, high = np.array([row[f"{name}_interval"] for row in rows]).T
        errors = values - low, high - values
        axes.errorbar(tokens, values, errors, **series(1).line, capsize=3, label="held-out windows")
        axes.set_yscale("log")
        axes.set_xlabel("tokens seen, thousands")
    losses = adaptation["trainings"]["distil"]
    if losses:
        last, batch = rows[-1]["tokens"], adaptation["recipe"]["batch_size"] * adaptation["recipe"]["tokens"]
        seen = [(last - batch * (len(losses) - row["step"])) / 1000 for row in losses]
        panels[0].plot(seen, [row["loss"] for row in losses], color=series(3).colour, alpha=0.6, linewidth=0.8,
                       label="distillation, each step")  # fmt: skip
    panels[0].set_ylabel("KL to the original, nats a token")
    panels[1].set_ylabel("perplexity")
    panels[1].axhline(stage(adaptation, "original")["perplexity"], color=series(0).colour, label="original")
    for axes in panels:
        axes.legend()
    add_note(figure, "Points: replaced, calibrated, after transfer (if any), adapted. "
             "Bars: 95 % intervals over windows.")  # fmt: skip
    return figure
