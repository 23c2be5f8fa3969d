"""Worlds in which the paper is right, or wrong in one respect, and what the claims say of them."""

from contextlib import suppress
from functools import cache

import pandas as pd

from recurformer.claims.evidence import Missing
from recurformer.claims.ledger import all_claims
from tests.worlds import frames, world

CLAIMS = {claim.id: claim for claim in all_claims()}
TESTED = [claim for claim in CLAIMS.values() if claim.judge]
IMPOSSIBLE = {"table4/qwen2-7b/0.75/cs_10k", "table4/qwen2-7b/0.75/cs_60k"}
"""Cells that no world with a falling cache can have."""


@cache
def ideal() -> dict[str, pd.DataFrame]:
    return frames()


def with_column(kind: str, column: str, change) -> dict[str, pd.DataFrame]:
    frame = ideal()[kind]
    return ideal() | {kind: frame.assign(**{column: change(frame)})}


def recurformer_rows(frame: pd.DataFrame) -> pd.Series:
    return (frame["family"] == "mixer") & (frame["method"] == "mamba") & (frame["by"] == "ra_i")


def swapped_levels(frame: pd.DataFrame) -> pd.Series:
    return frame["level"].map({"high": "low", "low": "high", "mid": "mid"})


def away_from_the_diagonal(frame: pd.DataFrame) -> pd.Series:
    """High RA-I looks at recent tokens only, of which it skips the nearer half."""
    distance = frame["query"] - frame["key"]
    return frame["weight"].mask(frame["level"] == "high", ((distance > 3) & (distance <= 6)).astype(float))


MUTATIONS = {
    "states cost more": with_column("mixer_prices", "cost", lambda f: 100 * f["cost"]),
    "growth": with_column("complexity", "bytes", lambda f: f["bytes"] * f["length"]),
    "mamba's peak larger": with_column(
        "complexity", "bytes",
        lambda f: f["bytes"].mask((f["mixer"] == "mamba") & (f["quantity"] == "cache_peak"), 1e15)),
    "mamba computes more": with_column("complexity", "operations", lambda f: f["operations"] * (f["mixer"] == "mamba")),
    "cache": with_column("cache", "ratio", lambda f: f["ratio"] + f["beta"] + 0.01),
    "cache grows more": with_column("cache", "total_bytes", lambda f: f["total_bytes"] * (1 + 5 * f["beta"]) + 1),
    "PyramidInfer keeps more": with_column("pyramidinfer", "ratio", lambda f: f["ratio"] + 0.1),
    "PyramidInfer keeps the hops": with_column("pyramidinfer_hashhop", "correct", lambda f: f["hops"]),
    "evicted": with_column("cache", "kv_bytes", lambda f: f["kv_bytes"] * (1 - 0.1 * f["beta"])),
    "state": with_column("cache", "conv_bytes", lambda f: f["conv_bytes"] / 2),
    "groups": with_column("cache", "heads_replaced", lambda f: f["kv_heads_freed"] * 3),
    "length": with_column("memory", "l_m", lambda f: f["l_m"] * (0.9 - 0.5 * f["beta"])),
    "RA-I's windows are further off": with_column(
        "continuation", "divergence", lambda f: f["divergence"].mask((f["method"] == "window") & ~f["trained"], 64.0)),
    "slower": with_column("bench", "ratio", lambda f: 0.4 * f["ratio"]),
    "small batches are quick": with_column("bench", "ratio", lambda f: f["ratio"].mask(f["batch"] == 1, 2.0)),
    "quality lost": with_column("hashhop", "correct", lambda f: (f["correct"] * (f["beta"] == 0) / 2).astype(int)),
    "far links are lost": with_column("hashhop", "correct", lambda f: f["correct"].clip(upper=2)),
    "quality kept at one": with_column("hashhop", "correct", lambda f: f["hops"]),
    "perplexity": with_column("perplexity", "negative_log_likelihood", lambda f: f["negative_log_likelihood"] * 1.2),
    "perplexity of the converted": with_column(
        "perplexity", "negative_log_likelihood",
        lambda f: f["negative_log_likelihood"].where((f["beta"] == 0) | (f["stage"] != "trained"), 7000)),
    "no harm by conversion": with_column(
        "perplexity", "negative_log_likelihood",
        lambda f: f["negative_log_likelihood"].where(f["stage"] != "converted", 2200)),
    "loss": with_column("metrics", "loss", lambda f: 2.5 + f["beta"]),
    "contribution": with_column("contribution", "mean", lambda f: f["mean"].where(f["tokens"] != "first", 1.0)),
    "contribution of the others": with_column("contribution", "mean", lambda f: f["mean"] * 2),
    "contribution interval": with_column("contribution", "high", lambda f: f["high"] * 3 + 1),
    "no recent heads": with_column("profile", "rr", lambda f: 0.1 + 0 * f["rr"]),
    "only recent heads": with_column("profile", "rr", lambda f: 0.9 + 0 * f["rr"]),
    "even attention": with_column("sink", "value", lambda f: 1.0 + 0 * f["value"]),
    "only the L1 norm of the first value is higher": with_column(
        "sink", "value", lambda f: f["value"].mask((f["quantity"] == "value_norm_l1") & (f["key"] == 0), 20.0)),
    "the first value varies as the others do": with_column(
        "sink", "value", lambda f: f["value"].mask(f["quantity"] == "value_spread", 0.5)),
    "the gate leaves the first value as it is": with_column(
        "influence", "norm", lambda f: f["norm"].mask(f["key"] == 0, 0.1)),
    "recent, but far from the diagonal": with_column("attention_map", "weight", away_from_the_diagonal),
    "levels": with_column("attention_map", "level", swapped_levels),
    "mqar without attention": with_column("mqar", "correct", lambda f: f["queries"]),
    "mqar with some heads": with_column(
        "mqar", "correct", lambda f: f["correct"].where((f["beta"] == 0) | (f["beta"] == 1), 500)),
    "hops lost": with_column("compared_hashhop", "correct", lambda f: f["correct"].mask(recurformer_rows(f), 0)),
    "hops lost in the retained heads alone": with_column(
        "compared_hashhop", "correct", lambda f: f["correct"].mask(f["family"] == "combined", 0)),
    "hops lost at one size": with_column(
        "hashhop_sizes", "correct", lambda f: f["correct"].mask(recurformer_rows(f) & (f["size"] == 1536), 0)),
    "an evicting cache loses the short texts only": with_column(
        "hashhop_sizes", "correct", lambda f: f["correct"].mask(f["family"] == "eviction", 16 * (f["size"] > 1536))),
    "needles lost": with_column("needle", "correct", lambda f: f["correct"].mask(recurformer_rows(f), 0)),
    "later questions are answered": with_column("turns", "correct", lambda f: f["queries"]),
    "answers to lm-eval's tasks lost": with_column(
        "ablation_lm_eval", "value", lambda f: f["value"].mask(recurformer_rows(f), 0.3)),
    "loss grows": with_column(
        "continuation", "negative_log_likelihood",
        lambda f: f["negative_log_likelihood"] + f["position"].where(recurformer_rows(f), 0)),
    "what stood far back is lost": with_column(
        "continuation", "recalled_likelihood", lambda f: f["recalled_likelihood"] + 4 * recurformer_rows(f)),
    "what stood far back needs no attention": with_column("positions", "recalled_likelihood", lambda f: f["recalled"]),
    "one token is written for ever, which is likely": ideal() | {"written": ideal()["written"].assign(
        agreed=lambda f: f["agreed"].mask(recurformer_rows(f), 0),
        negative_log_likelihood=lambda f: f["negative_log_likelihood"].mask(recurformer_rows(f), 0.1))},
    "heads that look back are chosen": with_column(
        "head_scores", "score", lambda f: f["score"].where(f["by"] != "retrieval", -f["score"])),
    "settings of RA-I matter": with_column(
        "ra_i_settings", "shared", lambda f: f["shared"].where(f["shared"] == f["selected"], 0)),
    "nothing comes back": with_column(
        "recovery", "negative_log_likelihood", lambda f: f["negative_log_likelihood"] + (f["beta"] > 0)),
    "random weights learn as fast": with_column(
        "recovery", "negative_log_likelihood",
        lambda f: f["negative_log_likelihood"].mask(f["arm"] == "scratch_98k", 2)),
    "the window is nearer": with_column(
        "recovery", "divergence", lambda f: f["divergence"].mask(f["mixer"] == "window", 0.001)),
}  # fmt: skip
"""Worlds in which the paper is wrong in one respect."""


WORLDS = {"the paper is right": ideal()} | MUTATIONS
CHANGED = {
    name: next(kind for kind in frames if frames[kind] is not ideal()[kind]) for name, frames in MUTATIONS.items()
}
"""Mutation -> the kind of measurement that it changes."""


@cache
def judged(claim: str, name: str) -> bool | None:
    """Whether a claim holds in a world; None where that world cannot tell."""
    try:
        return CLAIMS[claim].judge(world(WORLDS[name])).holds
    except Missing:
        return None


@cache
def mutations_of(claim: str) -> list[str]:
    """The mutations that change what the claim looks at."""
    with suppress(Missing):
        looked_at = CLAIMS[claim].judge(world(ideal())).rows
        return [name for name, kind in CHANGED.items() if kind in looked_at]
    return []
