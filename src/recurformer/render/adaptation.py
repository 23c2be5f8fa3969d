"""The result of `recurformer adapt` for people: a model card, and two pictures if matplotlib is installed."""

import json
import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from recurformer.render.page import render_page
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
CHOSEN = "windows and bits chosen, not trained"
"""The words for a converted model by a budget."""
MIXERS = {
    "mamba": "Mamba blocks, which keep a state of constant size",
    "window_state": "attention to a short window, with a recurrent state of all tokens",
}
"""Mixer -> its words in the card."""
COMPARED = ("", "original", "adapted", "adapted / original")
STEPS = ("after", "tokens seen", "perplexity", "divergence")
ESTIMATES = ("cache, fraction of the original's in 16 bits", "estimated cost, nats a token, hidden lookups included")
RAN = {"prefill": "prefill of {} tokens, tokens/s", "decode": "decoding of {} tokens after {}, tokens/s"}


def write_adaptation(folder: str | Path, adaptation: Adaptation) -> bool:
    """Write adaptation.json, README.md and, if matplotlib is installed, its two pictures beside a model.

    Args:
        folder: of the model.
        adaptation: what `recurformer.recover.adapt.adapt` measured, and under "base" the facts of its original
            (`recurformer.data.backbones.base_facts`).

    Returns:
        Whether there are pictures.
    """
    folder, drawn = Path(folder), bool(find_spec("matplotlib"))
    (folder / "adaptation.json").write_text(json.dumps(adaptation, indent=1) + "\n", encoding="utf-8")
    if drawn:
        from recurformer.render.adaptation_figures import draw

        draw(folder, adaptation)
    (folder / "README.md").write_text(card(adaptation, drawn), encoding="utf-8")
    return drawn


def card(adaptation: Adaptation, drawn: bool = True) -> str:
    """Markdown with the front matter that the model hub reads: description, numbers, pictures if they are `drawn`,
    loading.
    """
    base, mixer, heads = adaptation["base"], adaptation["recipe"]["mixer"], adaptation["heads"]
    replaced = sum(map(len, heads)) / (len(heads) * adaptation["attention_heads"])  # beta, rounded to whole groups
    front: dict[str, Any] = {"library_name": "transformers", "tags": ["recurformer", mixer]}
    if base["license"]:
        front["license"] = base["license"]
    if base["hub"]:
        front["base_model"] = base["name"]
    estimates = [(f"{fraction:.4g}", number(cost, 4)) for fraction, cost in adaptation.get("estimated", [])]
    return render_page(
        "card.md.j2",
        **{"budget": None, "loss": None, **adaptation},
        drawn=drawn,
        front=yaml.safe_dump(front, sort_keys=False),
        percent=f"{100 * replaced:.0f}",
        mixer=MIXERS.get(mixer, mixer),
        tables=[
            ("Before and after", COMPARED, compared(adaptation)),
            ("Step by step", STEPS, steps(adaptation)),
            *([("Estimates for other budgets", ESTIMATES, estimates)] if estimates else []),
            *([("What each group of heads keeps", *keeps(adaptation))] if "windows" in adaptation else []),
        ],
        took=f"{sum(adaptation['seconds'].values()) / 60:.1f}",
    )


def stage(adaptation: Adaptation, name: str) -> Adaptation:
    """The quality after one step."""
    return next(row for row in adaptation["stages"] if row["stage"] == name)


def compared(adaptation: Adaptation) -> list[tuple[str, ...]]:
    """Before and after: quantity, original, adapted, ratio."""
    before, after = stage(adaptation, "original"), stage(adaptation, "adapted")
    tokens = f"{before['windows']} held-out windows of {adaptation['recipe']['tokens']:,} tokens"
    rows, start = _quality(before, after, f"on {tokens}", " from the original there, nats a token"), 1
    for ours, theirs in zip(before.get("parts", []), after.get("parts", []), strict=True):
        part = f"of tokens {start:,} to {theirs['stop']:,}"
        rows, start = [*rows, *_quality(ours, theirs, part, f" {part}")], theirs["stop"] + 1
    return [
        *rows,
        *(
            (f"passkeys found in {one['length']:,} tokens", _answers(one), _answers(other), NOTHING)
            for one, other in zip(*(adaptation["passkeys"][name] for name in ("original", "adapted")), strict=True)
        ),
        *(
            (
                f"cache at {row['length']:,} tokens, MB", _megabytes(row["original"]),
                _megabytes(row["adapted"]), number(row["adapted"] / row["original"], 3),
            )
            for row in adaptation["cache"]
        ),
        *(
            (
                RAN[row["phase"]].format(row["tokens"], adaptation["speed"][0]["tokens"]),
                number(row["original"], 1), number(row["adapted"], 1),
                _speed_ratio(row),
            )
            for row in adaptation["speed"]
        ),
        ("parameters", *(f"{count:,}" for count in adaptation["parameters"]),
         number(adaptation["parameters"][1] / adaptation["parameters"][0], 3)),
    ]  # fmt: skip


def steps(adaptation: Adaptation) -> list[tuple[str, ...]]:
    """Quality after each step: step, tokens seen, perplexity, divergence from the original."""
    names = [row["stage"] for row in adaptation["stages"]]
    labels = STAGE_LABELS | ({"converted": CHOSEN} if adaptation.get("budget") else {})
    midway = [name == after for name, after in zip(names, [*names[1:], None], strict=True)]
    return [
        (
            labels[row["stage"]] + ", midway" * early, number(row["tokens"], 0), _with_interval(row, "perplexity", 2),
            _divergence(row),
        )
        for row, early in zip(adaptation["stages"], midway, strict=True)
    ]  # fmt: skip


def keeps(adaptation: Adaptation) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What each group of heads keeps, by a budget: headings, and a row for each layer."""
    rows = [
        (str(layer), *(f"{'all' if size is None else f'{size:,}'} / {width}" for size, width in zip(*own, strict=True)))
        for layer, own in enumerate(zip(adaptation["windows"], adaptation["bits"], strict=True))
    ]
    return ("layer", *(f"group {group}" for group in range(adaptation["kv_heads"]))), rows


def _megabytes(count: float) -> str:
    return number(count / 1e6, 1 if count >= 1e6 else 4)


def _quality(before: Adaptation, after: Adaptation, of: str, there: str) -> list[tuple[str, ...]]:
    """Rows of perplexity and divergence, before and after."""
    perplexities = (_with_interval(row, "perplexity", 2) for row in (before, after))
    return [
        (f"perplexity {of}", *perplexities, number(after["perplexity"] / before["perplexity"], 3)),
        (f"divergence{there}", "0", _divergence(after), NOTHING),
    ]


def _divergence(row: Adaptation) -> str:
    return _with_interval(row, "divergence", 3 if row["divergence"] >= 0.01 or not row["divergence"] else 5)


def _with_interval(row: Adaptation, name: str, decimals: int) -> str:
    low, high = row[f"{name}_interval"]
    return estimated(row[name], low, high, decimals)


def _speed_ratio(row: Adaptation) -> str:
    low, high = row.get("ratio_interval", (math.nan, math.nan))  # older measurements have none
    return estimated(row["ratio"], low, high, 2)


def _answers(row: Adaptation) -> str:
    return f"{row['found']} of {row['asked']}" if "asked" in row else "not measured"
