"""The numbers of an adaptation as rows of texts, for the card, the page and the terminal."""

from collections.abc import Mapping
from typing import Any

from recurformer.render.tables.cell_text import NOTHING, estimated, number

Found = Mapping[str, Any]
"""The content of adaptation.json."""

STAGE_LABELS = {
    "original": "original",
    "converted": "heads replaced, not trained",
    "calibrated": "calibrated (closed form)",
    "transferred": "transfer, layer by layer",
    "adapted": "adapted: the final model",
}
"""Name of a stage -> its words in card and page."""
MIXERS = {
    "mamba": "Mamba blocks, which keep a state of constant size",
    "window_state": "attention to a short window, with a recurrent state for all earlier tokens",
}
"""Mixer -> its words in card and page."""
COMPARED = ("", "original", "adapted", "adapted / original")
STEPS = ("after", "tokens seen", "perplexity", "divergence")
RAN = {"prefill": "prefill of {} tokens, tokens/s", "decode": "decoding of {} tokens, tokens/s"}


def stage(found: Found, name: str) -> Found:
    """The quality after one step."""
    return next(row for row in found["stages"] if row["stage"] == name)


def replaced_share(found: Found) -> float:
    """Heads replaced over all heads: beta, rounded to whole groups."""
    heads = found["heads"]
    return sum(map(len, heads)) / (len(heads) * found["attention_heads"])


def compared(found: Found) -> list[tuple[str, ...]]:
    """Before and after: quantity, original, adapted, ratio."""
    before, after = stage(found, "original"), stage(found, "adapted")
    tokens = f"{before['windows']} held-out windows of {found['recipe']['tokens']} tokens"
    return [
        (
            f"perplexity on {tokens}", _with_interval(before, "perplexity", 2), _with_interval(after, "perplexity", 2),
            number(after["perplexity"] / before["perplexity"], 3),
        ),
        ("divergence from the original there, nats a token", "0", _with_interval(after, "divergence", 3), NOTHING),
        *(
            (f"passkeys found in {one['length']} tokens", _answers(one), _answers(other), NOTHING)
            for one, other in zip(*(found["passkeys"][name] for name in ("original", "adapted")), strict=True)
        ),
        *(
            (
                f"cache at {row['length']:,} tokens, MB", number(row["original"] / 1e6, 1),
                number(row["adapted"] / 1e6, 1), number(row["adapted"] / row["original"], 3),
            )
            for row in found["cache"]
        ),
        *(
            (
                RAN[row["phase"]].format(row["tokens"]), number(row["original"], 1), number(row["adapted"], 1),
                number(row["ratio"], 2),
            )
            for row in found["speed"]
        ),
        ("parameters", *(f"{count:,}" for count in found["parameters"]),
         number(found["parameters"][1] / found["parameters"][0], 3)),
    ]  # fmt: skip


def steps(found: Found) -> list[tuple[str, ...]]:
    """Quality after each step: step, tokens seen, perplexity, divergence from the original."""
    return [
        (
            STAGE_LABELS[row["stage"]], number(row["tokens"], 0), _with_interval(row, "perplexity", 2),
            _with_interval(row, "divergence", 3),
        )
        for row in found["stages"]
    ]  # fmt: skip


def tables(found: Found) -> dict[str, tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Title of a table -> its headings and its rows."""
    return {"Before and after": (COMPARED, compared(found)), "Step by step": (STEPS, steps(found))}


def notes(found: Found) -> list[str]:
    """How the numbers were measured."""
    plan, recipe = found["plan"], found["recipe"]
    batch = recipe["batch_size"]
    return [
        f"{found['documents'][0]} documents of {found['tokens'][0]:,} tokens are the training text; "
        f"{found['documents'][1]} others are held out.",
        f"Calibration, {plan['transfer_steps']} steps of transfer and {plan['distil_steps']} of distillation, "
        f"{batch} windows a step; all steps together took {sum(found['seconds'].values()) / 60:.1f} minutes.",
        "Brackets are 95 % intervals over windows. Divergence is KL(original || model), the mean over tokens.",
        "Speed is the median of rounds in which both models took turns on one machine; the ratio is the median of the "
        "rounds' ratios. Above 1 the adapted model is faster.",
        "Quality and speed were measured in float32.",
        f"Cache sizes are counted from the cache objects of both models in {found['dtype']}.",
    ]


def _with_interval(row: Found, name: str, decimals: int) -> str:
    low, high = row[f"{name}_interval"]
    return estimated(row[name], low, high, decimals)


def _answers(row: Found) -> str:
    return f"{row['found']} of {row['asked']}" if "asked" in row else "not measured"
