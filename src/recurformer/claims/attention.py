"""What the text and Figures 1, 2, 5 and 6 say about attention heads and the first token."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd

from recurformer.claims.claim import Finding
from recurformer.claims.evidence import Evidence, Missing, Undecided, labels
from recurformer.paper import BACKBONE_LABELS, D_CONV, LOCAL_FRACTION, label
from recurformer.results.cells import contribution_values
from recurformer.results.frames import groups
from recurformer.results.scores import ra_i

MINIMUM_WINDOWS = 32
"""Fewer windows of text say nothing about a model's attention."""
VALUE_NORMS = {"L1": "value_norm_l1", "L2": "value_norm"}
"""Norm of a value vector -> the measured quantity."""


def _windows(rows: pd.DataFrame, kind: str) -> int:
    """The windows behind some rows; it is undecided what too few of them show."""
    count = int(rows["sample"].nunique() if kind == "profile" else rows["samples"].min())
    if count < MINIMUM_WINDOWS:
        raise Undecided(f"{count} windows of text are too few: at least {MINIMUM_WINDOWS} are needed")
    return count


def _model_rows(
    evidence: Evidence, kind: str, named: Iterable[str] = tuple(BACKBONE_LABELS), others: bool = True
) -> tuple[list[tuple[str, pd.DataFrame]], dict[str, Any]]:
    """Rows by model, and for a finding: the fewest windows among them, and the rows; `others` as of `of_each_model`."""
    by_model = [(model, evidence.rows(kind, model=model)) for model in evidence.models(kind, named)]
    if not others and {model for model, _ in by_model} != set(named):
        raise Missing(f"the sentence is about {' and '.join(map(label, named))}")
    windows = min(_windows(rows, kind) for _, rows in by_model)
    return by_model, {"samples": windows, "rows": {kind: labels(rows for _, rows in by_model)}}


def of_each_model(kind: str) -> Callable[[Callable[..., tuple[bool, str]]], Callable[..., Finding]]:
    """Makes a judge of a function that judges the rows of one model and says what it found: all of them must hold.

    The judge takes the `models` that a sentence is about, and whether it says anything about `others` in their place.
    """

    def judge_of(of_model: Callable[..., tuple[bool, str]]) -> Callable[..., Finding]:
        @wraps(of_model)
        def judge(
            evidence: Evidence, models: Sequence[str] = tuple(BACKBONE_LABELS), others: bool = True, **parameters: Any
        ) -> Finding:
            by_model, about = _model_rows(evidence, kind, models, others)
            judged = [of_model(label(model), rows, **parameters) for model, rows in by_model]
            return Finding(all(holds for holds, _ in judged), "; ".join(text for _, text in judged), **about)

        return judge

    return judge_of


@of_each_model("profile")
def heads(model: str, rows: pd.DataFrame, recent: bool, least: float) -> tuple[bool, str]:
    """Fraction of the heads whose recency ratio exceeds alpha in most windows, or of those whose ratio does not.

    `least` is the fraction that "certain" heads must be: fewer would free no cache to speak of.
    """
    above = float((ra_i(rows) > 0.5).mean())
    part = above if recent else 1 - above
    return part >= least, f"{part:.0%} of the heads of {model}"


def levels(evidence: Evidence, first_token: bool) -> Finding:
    """Attention on the first token, of which low RA-I has more, or near the diagonal, of which high RA-I has more.

    RA-I chose the heads by their attention on recent tokens, which can hardly fail to differ between them. It counts
    all of these tokens alike: how the attention falls off among them is another quantity. So near the diagonal is the
    nearer half's part of the attention on recent tokens.
    """
    by_model, about = _model_rows(evidence, "attention_map")
    parts: dict[str, list[float]] = {}
    for _, rows in by_model:
        reach = round(LOCAL_FRACTION * (rows["query"].max() + 1))
        late = rows[rows["query"] > 2 * reach]  # earlier queries have few keys that are not recent
        for level, weights in late.groupby("level"):
            distance = weights["query"] - weights["key"]
            total = weights if first_token else weights[distance <= reach]
            chosen = total[total["key"] == 0] if first_token else weights[distance <= reach / 2]
            parts.setdefault(str(level), []).append(float(chosen["weight"].sum() / total["weight"].sum()))
    mean = {level: sum(of_models) / len(of_models) for level, of_models in parts.items()}
    larger, smaller = ("low", "high") if first_token else ("high", "low")
    text = ", ".join(f"{level} {mean[level]:.2f}" for level in ("high", "mid", "low"))
    return Finding(mean[larger] > mean[smaller], text, **about)


def mean_ra_i(evidence: Evidence) -> Finding:
    """Mean RA-I of both Qwen2 models against Llama2-7B."""
    profiles = {model: evidence.rows("profile", model=model) for model in BACKBONE_LABELS}
    means = {model: float(ra_i(rows).mean()) for model, rows in profiles.items()}
    windows = min(_windows(rows, "profile") for rows in profiles.values())
    holds = min(means["qwen2-0.5b"], means["qwen2-7b"]) > means["llama2-7b"]
    text = ", ".join(f"{label(model)} {mean:.2f}" for model, mean in means.items())
    return Finding(holds, text, {"profile": labels(profiles.values())}, windows)


@of_each_model("sink")
def sink(model: str, rows: pd.DataFrame) -> tuple[bool, str]:
    """The sink head gives the first token more attention than all others together."""
    attention = rows[(rows["query"] >= 1) & (rows["quantity"] == "attention")]
    on_first = float(attention.loc[attention["key"] == 0, "value"].sum() / attention["value"].sum())
    return on_first > 0.5, f"{on_first:.0%} in {model}"


@of_each_model("sink")
def value_norm(model: str, rows: pd.DataFrame) -> tuple[bool, str]:
    """Both norms of the first token's value over the mean of the others'."""
    values = rows.groupby(["quantity", "key"])["value"].mean()
    ratios = {norm: values[quantity][0] / values[quantity].drop(0).mean() for norm, quantity in VALUE_NORMS.items()}
    text = ", ".join(f"{norm} {ratio:.2f} of the others' in {model}" for norm, ratio in ratios.items())
    return all(ratio < 1 for ratio in ratios.values()), text


@of_each_model("sink")
def value_spread(model: str, rows: pd.DataFrame) -> tuple[bool, str]:
    """The part of the sink head's value vectors that differs between samples: the first token's, the others' mean."""
    spread = rows[rows["quantity"] == "value_spread"].set_index("key")["value"]
    first, others = float(spread[0]), float(spread.drop(0).mean())
    return first < others, f"{first:.2f}, others {others:.2f} in {model}"


@of_each_model("influence")
def input_gate(model: str, rows: pd.DataFrame) -> tuple[bool, str]:
    """Norm of the first token's value over the others' mean, before and after the input gate of a trained model.

    Raises:
        Undecided: it is not shorter before the gate; or it comes nearer, but the next tokens, at which the convolution
            before the gate is not filled either, change as much.
    """
    norms = {mixer: of_mixer.set_index("key")["norm"].sort_index() for mixer, of_mixer in groups(rows, "mixer")}
    before, after = (norms[mixer] / norms[mixer].drop(0).mean() for mixer in ("attention", "mamba"))
    text = f"{before[0]:.2f} of the others' before the gate, {after[0]:.2f} after it in {model}"
    if before[0] >= 1:
        raise Undecided(f"{text}: there is nothing to lift")
    nearer = abs(math.log(after[0])) < abs(math.log(before[0]))
    changes = (after / before).loc[: D_CONV - 2].map(np.log).abs()
    if nearer and changes.loc[1:].max() >= changes[0]:
        raise Undecided(f"{text}, but the next tokens, where the convolution is not filled either, change as much")
    return nearer, text


@of_each_model("contribution")
def contributions(model: str, rows: pd.DataFrame, significant: float = 1.0) -> tuple[bool, str]:
    """Mean contributions of the first and of the other tokens, over all heads, under both norms; the p of the paired
    test must be below `significant`.
    """
    means = contribution_values(rows).set_index(["norm", "tokens"])["ours"]
    less = all(means[norm, "first"] < means[norm, "other"] for norm in ("l1", "l2"))
    sure = significant >= 1 or bool(rows["p_value"].max() < significant)
    return less and sure, f"{model} L2 {means['l2', 'first']:.3f} first, {means['l2', 'other']:.3f} others"
