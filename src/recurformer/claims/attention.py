"""What the text and Figures 1, 2, 5 and 6 say about attention heads and the first token."""

import math
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pandas as pd

from recurformer.claims.claim import Finding
from recurformer.claims.evidence import Evidence, Missing, Undecided, labels
from recurformer.paper import BACKBONE_LABELS, LOCAL_SHARE, WINDOWS, label
from recurformer.results.cells import contribution_values
from recurformer.results.frames import groups

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
    evidence: Evidence, kind: str, named: Iterable[str] = tuple(BACKBONE_LABELS)
) -> tuple[list[tuple[str, pd.DataFrame]], dict[str, Any]]:
    """Rows by model, and for a finding: whether they are those of the paper over as many windows, the fewest windows
    among them, and the rows.
    """
    models, papers = evidence.models(kind, named)
    by_model = [(model, evidence.rows(kind, model=model)) for model in models]
    windows = min(_windows(rows, kind) for _, rows in by_model)
    at_scale = papers and windows >= WINDOWS[kind]
    return by_model, {"at_scale": at_scale, "samples": windows, "rows": {kind: labels(rows for _, rows in by_model)}}


def _ra_i(rows: pd.DataFrame) -> pd.Series:
    """Share of the windows in which each head's recency ratio exceeds the threshold."""
    return (rows["rr"] > rows["threshold"]).groupby([rows["layer"], rows["head"]]).mean()


def heads(evidence: Evidence, recent: bool, least: float) -> Finding:
    """Share of the heads whose recency ratio exceeds alpha in most windows, or of those whose ratio does not.

    `least` is the share that "certain" heads must have: fewer would free no cache to speak of.
    """
    by_model, about = _model_rows(evidence, "profile")
    above = {model: float((_ra_i(rows) > 0.5).mean()) for model, rows in by_model}
    shares = {model: share if recent else 1 - share for model, share in above.items()}
    text = ", ".join(f"{share:.0%} of the heads of {label(model)}" for model, share in shares.items())
    return Finding(min(shares.values()) >= least, text, **about)


def levels(evidence: Evidence, first_token: bool) -> Finding:
    """Attention on the first token, of which low RA-I has more, or near the diagonal, of which high RA-I has more.

    RA-I chose the heads by the share of attention on recent tokens, which can hardly fail to differ between them. It
    counts all of these tokens alike: how the attention falls off among them is another quantity. So near the diagonal
    is the nearer half's share among the recent tokens.
    """
    by_model, about = _model_rows(evidence, "attention_map")
    found: dict[str, list[float]] = {}
    for _, rows in by_model:
        reach = round(LOCAL_SHARE * (rows["query"].max() + 1))
        late = rows[rows["query"] > 2 * reach]  # earlier queries have few keys that are not recent
        for level, weights in late.groupby("level"):
            distance = weights["query"] - weights["key"]
            total = weights if first_token else weights[distance <= reach]
            chosen = total[total["key"] == 0] if first_token else weights[distance <= reach / 2]
            found.setdefault(str(level), []).append(float(chosen["weight"].sum() / total["weight"].sum()))
    if not {"high", "low"} <= set(found):
        raise Missing("attention maps of heads of high and of low RA-I are needed")
    share = {level: sum(shares) / len(shares) for level, shares in found.items()}
    larger, smaller = ("low", "high") if first_token else ("high", "low")
    text = ", ".join(f"{level} {share[level]:.2f}" for level in ("high", "mid", "low") if level in share)
    return Finding(share[larger] > share[smaller], text, **about)


def mean_ra_i(evidence: Evidence) -> Finding:
    """Mean RA-I of both Qwen2 models against Llama2-7B."""
    rows = {model: evidence.rows("profile", model=model) for model in BACKBONE_LABELS}
    means = {model: float(_ra_i(found).mean()) for model, found in rows.items()}
    windows = min(_windows(found, "profile") for found in rows.values())
    holds = min(means["qwen2-0.5b"], means["qwen2-7b"]) > means["llama2-7b"]
    text = ", ".join(f"{label(model)} {mean:.2f}" for model, mean in means.items())
    return Finding(holds, text, windows >= WINDOWS["profile"], {"profile": labels(rows.values())}, windows)


def sink(evidence: Evidence) -> Finding:
    """The sink head gives the first token more attention than all others together."""
    by_model, about = _model_rows(evidence, "sink", named=["llama2-7b"])
    shares = {}
    for model, rows in by_model:
        attention = rows[(rows["query"] >= 1) & (rows["quantity"] == "attention")]
        if attention.empty:
            raise Missing(f"no attention of the sink head of {label(model)}")
        on_first = attention.loc[attention["key"] == 0, "value"].sum()
        shares[model] = float(on_first / attention["value"].sum())
    text = ", ".join(f"{share:.0%} in {label(model)}" for model, share in shares.items())
    return Finding(min(shares.values()) > 0.5, text, **about)


def value_norm(evidence: Evidence) -> Finding:
    """Both norms of the first token's value over the mean of the others'; a norm that is higher decides alone."""
    by_model, about = _model_rows(evidence, "sink", named=["llama2-7b"])
    ratios, absent = {}, []
    for (model, rows), (norm, quantity) in product(by_model, VALUE_NORMS.items()):
        norms = rows[rows["quantity"] == quantity].groupby("key")["value"].mean()
        if 0 in norms.index:
            ratios[model, norm] = float(norms[0] / norms.drop(0).mean())
        else:
            absent.append(f"no {norm} norms of the values of {label(model)}")
    text = ", ".join(f"{norm} {ratio:.2f} of the others' in {label(model)}" for (model, norm), ratio in ratios.items())
    holds = all(ratio < 1 for ratio in ratios.values())
    if holds and absent:
        raise Missing("; ".join([*absent, *([f"measured: {text}"] if text else [])]))
    return Finding(holds, text, **about)


def value_spread(evidence: Evidence) -> Finding:
    """Share of the sink head's value vectors that differs between samples: the first token's, the others' mean."""
    by_model, about = _model_rows(evidence, "sink", named=["llama2-7b"])
    shares = {}
    for model, rows in by_model:
        spread = rows[rows["quantity"] == "value_spread"].set_index("key")["value"]
        if 0 not in spread.index:
            raise Missing(f"the spread of the value vectors of {label(model)} over the samples was not measured")
        shares[model] = float(spread[0]), float(spread.drop(0).mean())
    text = ", ".join(f"{first:.2f}, others {other:.2f} in {label(model)}" for model, (first, other) in shares.items())
    return Finding(all(first < other for first, other in shares.values()), text, **about)


def input_gate(evidence: Evidence) -> Finding:
    """Norm of the first token's value over the others' mean, before and after the input gate of a trained model."""
    if "norm" not in evidence.rows("influence"):
        raise Missing("the norms of the values after the input gate were not measured")
    by_model, about = _model_rows(evidence, "influence")
    texts, nearer = [], True
    for model, rows in by_model:
        norms = {mixer: found.set_index("key")["norm"] for mixer, found in groups(rows, "mixer")}
        before, after = (float(norms[mixer][0] / norms[mixer].drop(0).mean()) for mixer in ("attention", "mamba"))
        nearer &= abs(math.log(after)) < abs(math.log(before))
        texts.append(f"{before:.2f} of the others' before the gate, {after:.2f} after it in {label(model)}")
    return Finding(nearer, "; ".join(texts), **about)


def contributions(evidence: Evidence, models: Sequence[str] = (), significant: float = 1.0) -> Finding:
    """Mean contributions of the first and of the other tokens, over all heads, under both norms.

    Args:
        evidence: with contributions.
        models: those that the sentence is about, all of which are needed; else the paper's, or others.
        significant: what p of the paired test must be below.
    """
    by_model, about = _model_rows(evidence, "contribution", models or BACKBONE_LABELS)
    if models and {model for model, _ in by_model} != set(models):
        raise Missing(f"the sentence is about {' and '.join(map(label, models))}")
    texts, less = [], True
    for model, rows in by_model:
        found = contribution_values(rows).set_index(["norm", "tokens"])["ours"]
        if not set(product(("l1", "l2"), ("first", "other"))) <= set(found.index):
            raise Missing(f"contributions of {label(model)} are incomplete")
        less &= all(found[norm, "first"] < found[norm, "other"] for norm in ("l1", "l2"))
        less &= significant >= 1 or bool(rows["p_value"].max() < significant)
        texts.append(f"{label(model)} L2 {found['l2', 'first']:.3f} first, {found['l2', 'other']:.3f} others")
    return Finding(less, "; ".join(texts), **about)
