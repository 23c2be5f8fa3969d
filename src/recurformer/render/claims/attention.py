"""What the text and Figures 1, 2, 5 and 6 say about attention heads and the first token."""

import pandas as pd

from recurformer.paper import BACKBONE_LABELS, label
from recurformer.paper.sizes import WINDOWS
from recurformer.render.claims.claim import Finding, Missing
from recurformer.render.claims.evidence import Evidence
from recurformer.render.measurements import groups

MINIMUM_WINDOWS = 32
"""Fewer windows of text say nothing about a model's attention."""
SHARE_OF_HEADS = 0.1
"""What "certain heads" must be at least: fewer would free no cache to speak of."""
LOCAL_SHARE = 0.1
"""A key at most this share of the window away is recent: the proportion of appendix B, 102 of 1,024 tokens."""
LAST_TOKENS = 5
"""Tokens that Figure 1 draws one by one."""
SIGNIFICANT = 0.05


def _windows(rows: pd.DataFrame, kind: str) -> int:
    """The windows behind some rows.

    Raises:
        Missing: they are too few.
    """
    count = int(rows["sample"].nunique() if kind == "profile" else rows["samples"].min())
    if count < MINIMUM_WINDOWS:
        raise Missing(f"{count} windows of text are too few: at least {MINIMUM_WINDOWS} are needed")
    return count


def _model_rows(evidence: Evidence, kind: str) -> tuple[list[tuple[str, pd.DataFrame]], bool, int]:
    """Rows by model, whether they are at the paper's scale, and the fewest windows among them."""
    models, papers = evidence.models(kind)
    by_model = [(model, evidence.rows(kind, model=model)) for model in models]
    windows = min(_windows(rows, kind) for _, rows in by_model)
    return by_model, papers and windows >= WINDOWS[kind], windows


def _ra_i(rows: pd.DataFrame) -> pd.Series:
    """Share of the windows in which each head's recency ratio exceeds the threshold."""
    return (rows["rr"] > rows["threshold"]).groupby([rows["layer"], rows["head"]]).mean()


def _judge_heads(evidence: Evidence, recent: bool) -> Finding:
    by_model, at_scale, windows = _model_rows(evidence, "profile")
    shares = {}
    for model, rows in by_model:
        above = float((_ra_i(rows) > 0.5).mean())
        shares[model] = above if recent else 1 - above
    text = ", ".join(f"{share:.0%} of the heads of {label(model)}" for model, share in shares.items())
    return Finding(min(shares.values()) >= SHARE_OF_HEADS, text, at_scale, windows)


def judge_recency_aware(evidence: Evidence) -> Finding:
    """Heads whose recency ratio exceeds alpha in most windows."""
    return _judge_heads(evidence, recent=True)


def judge_contextual_retrieval(evidence: Evidence) -> Finding:
    """Heads whose recency ratio does not."""
    return _judge_heads(evidence, recent=False)


def judge_figure1(evidence: Evidence) -> Finding:
    """The last tokens weigh more than evenly in both updates."""
    models, papers = evidence.models("influence")
    _windows(evidence.rows("profile", model=models[0]), "profile")  # they chose the head that is shown
    shares = {}
    even = 1.0
    for (mixer,), rows in groups(evidence.rows("influence", model=models[0]), ["mixer"]):
        even = LAST_TOKENS / len(rows)
        shares[mixer] = float(rows.nlargest(LAST_TOKENS, "key")["weight"].sum() / rows["weight"].sum())
    if set(shares) != {"attention", "mamba"}:
        raise Missing("influence measurements of one mixer only")
    text = ", ".join(f"{mixer} {share:.2f}" for mixer, share in shares.items())
    return Finding(min(shares.values()) > even, f"{text} on the last {LAST_TOKENS} tokens, evenly {even:.2f}", papers)


def _levels(evidence: Evidence, first_token: bool) -> tuple[dict[str, float], bool, int]:
    """Of each level of RA-I: the share of attention on recent tokens but the first, or that on the first."""
    by_model, at_scale, windows = _model_rows(evidence, "attention_map")
    found: dict[str, list[float]] = {}
    for _, rows in by_model:
        reach = round(LOCAL_SHARE * (rows["query"].max() + 1))
        late = rows[rows["query"] > 2 * reach]  # earlier queries have few keys that are not recent
        for level, weights in late.groupby("level"):
            first = weights["key"] == 0
            chosen = first if first_token else ~first & (weights["query"] - weights["key"] <= reach)
            total = weights["weight"] if first_token else weights.loc[~first, "weight"]
            found.setdefault(str(level), []).append(float(weights.loc[chosen, "weight"].sum() / total.sum()))
    if not {"high", "low"} <= set(found):
        raise Missing("attention maps of heads of high and of low RA-I are needed")
    return {level: sum(shares) / len(shares) for level, shares in found.items()}, at_scale, windows


def _judge_levels(evidence: Evidence, first_token: bool) -> Finding:
    share, at_scale, windows = _levels(evidence, first_token)
    larger, smaller = ("low", "high") if first_token else ("high", "low")
    text = ", ".join(f"{level} {share[level]:.2f}" for level in ("high", "mid", "low") if level in share)
    return Finding(share[larger] > share[smaller], text, at_scale, windows)


def judge_figure5_high(evidence: Evidence) -> Finding:
    """Attention on recent tokens, the first left out: high against low RA-I."""
    return _judge_levels(evidence, first_token=False)


def judge_figure5_low(evidence: Evidence) -> Finding:
    """Attention on the first token: low against high RA-I."""
    return _judge_levels(evidence, first_token=True)


def judge_figure6(evidence: Evidence) -> Finding:
    """Mean RA-I of both Qwen2 models against Llama2-7B."""
    means = {model: float(_ra_i(evidence.rows("profile", model=model)).mean()) for model in BACKBONE_LABELS}
    windows = min(_windows(evidence.rows("profile", model=model), "profile") for model in BACKBONE_LABELS)
    holds = min(means["qwen2-0.5b"], means["qwen2-7b"]) > means["llama2-7b"]
    text = ", ".join(f"{label(model)} {mean:.2f}" for model, mean in means.items())
    return Finding(holds, text, at_scale=True, samples=windows)


def _sink(evidence: Evidence) -> tuple[dict[str, dict[str, float]], bool, int]:
    """Of each model's sink head: first token's share of attention and contribution, its norm over the others'."""
    by_model, at_scale, windows = _model_rows(evidence, "sink")
    found = {}
    for model, rows in by_model:
        later = rows[rows["query"] >= 1]
        shares = {
            str(quantity): float(values.loc[values["key"] == 0, "value"].sum() / values["value"].sum())
            for quantity, values in later.groupby("quantity")
        }
        norms = rows[rows["quantity"] == "value_norm"].set_index("key")["value"]
        found[model] = {**shares, "norm": float(norms.loc[0] / norms.drop(0).mean())}
    return found, at_scale, windows


def judge_sink(evidence: Evidence) -> Finding:
    """The sink head gives the first token more attention than all others together."""
    found, at_scale, windows = _sink(evidence)
    text = ", ".join(f"{shares['attention']:.0%} in {label(model)}" for model, shares in found.items())
    return Finding(min(shares["attention"] for shares in found.values()) > 0.5, text, at_scale, windows)


def judge_value_norm(evidence: Evidence) -> Finding:
    """The L2 norm of the first token's value over the mean of the others'."""
    found, at_scale, windows = _sink(evidence)
    text = ", ".join(f"{shares['norm']:.2f} of the others' in {label(model)}" for model, shares in found.items())
    return Finding(max(shares["norm"] for shares in found.values()) < 1, text, at_scale, windows)


def judge_limited_contribution(evidence: Evidence) -> Finding:
    """The first token's share of the contributions against half of its share of the attention."""
    found, at_scale, windows = _sink(evidence)
    holds = all(shares["contribution"] <= 0.5 * shares["attention"] for shares in found.values())
    text = ", ".join(
        f"{label(model)}: {shares['contribution']:.1%} of the contributions, {shares['attention']:.1%} of the attention"
        for model, shares in found.items()
    )
    return Finding(holds, text, at_scale, windows)


def judge_first_contributes_less(evidence: Evidence) -> Finding:
    """Mean contributions of the first and the other tokens, under both norms, with the paired test."""
    by_model, at_scale, windows = _model_rows(evidence, "contribution")
    texts, holds = [], True
    for model, rows in by_model:
        means = rows.groupby(["norm", "tokens"])["mean"].first()
        for norm in ("l1", "l2"):
            significant = rows.loc[rows["norm"] == norm, "p_value"].max() < SIGNIFICANT
            holds &= bool(means[norm, "first"] < means[norm, "other"] and significant)
        texts.append(f"{label(model)} L2 {means['l2', 'first']:.3f} first, {means['l2', 'other']:.3f} others")
    return Finding(holds, "; ".join(texts), at_scale, windows)
