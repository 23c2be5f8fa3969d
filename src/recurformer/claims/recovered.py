"""What recovery shows, which the paper does not claim: how far and how fast models come back, and by which mixer."""

import math

import pandas as pd

from recurformer.claims.claim import ALLOWED_RATIO, OPEN, Finding, at_most, mean_difference
from recurformer.claims.evidence import Evidence, Missing, Undecided, labels
from recurformer.data.interval import Estimate
from recurformer.paper import label
from recurformer.results.frames import by_model, groups
from recurformer.results.learned import ALLOWED_FALL, RECOVERED_BY, arm_label, at_equal_bytes, last_points, state_bytes
from recurformer.results.words import estimated
from recurformer.study.ablations import COMMON_BETA

KIND = "recovery"
SECOND_HALF = 0.7
"""A point after at most so much of a curve's tokens is compared with its end. That at half of the training is such a
point, also where the closed form read some tokens before; that at three quarters is not."""
SAME_BYTES = 1.1
"""The larger of two caches over the smaller, at most, where they are called equal."""


def _curves(evidence: Evidence, beta: float, *arms: str) -> pd.DataFrame:
    """The points of some arms of the first model, at one fraction of heads; all of them must have been measured."""
    model, _ = by_model(evidence.rows(KIND))[0]
    for arm in arms:
        evidence.rows(KIND, model=model, arm=arm, beta=beta)
    return evidence.rows(KIND, model=model, arm=list(arms), beta=beta)


def _gap(rows: pd.DataFrame, others: pd.DataFrame, quantity: str) -> Estimate:
    """Mean difference of a quantity on the same windows within a seed; an original before any training is that of
    every seed.
    """
    by_seed, untouched = ["seed", "window"], (others["beta"] == 0).all() and (others["tokens"] == 0).all()
    values = others.groupby("window" if untouched else by_seed)[quantity].mean()
    return mean_difference(rows.groupby(by_seed)[quantity].mean().sub(values, level="window" if untouched else None))


def _over(rows: pd.DataFrame, others: pd.DataFrame) -> Estimate:
    """Perplexity over perplexity on the same windows, with the interval of `_gap`."""
    return Estimate(*map(math.exp, _gap(rows, others, "negative_log_likelihood")))


def _falls(curve: pd.DataFrame) -> str:
    """Why a curve decides nothing yet: its divergence still fell at its end; empty where it had flattened."""
    apart = curve.groupby("tokens")["divergence"].mean()
    before = apart[apart.index < SECOND_HALF * apart.index.max()]
    fall = before.iloc[-1] - apart.iloc[-1] if len(before) else 0.0
    return f"the divergence still fell by {fall:.2f} nats in the second half" if fall > ALLOWED_FALL else ""


def _seeds(rows: pd.DataFrame) -> str:
    seeds = rows["seed"].nunique()
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def _finding(rows: pd.DataFrame, holds: bool, still_open: str, text: str, *beside: pd.DataFrame) -> Finding:
    """The finding of a judge about some rows; it rests on them and on others `beside` them."""
    rests_on = {KIND: labels([rows, *beside])}
    samples, tokens = rows["window"].nunique(), int(rows["tokens"].max())
    return Finding(holds, text, rests_on, samples, still_open, tokens=tokens)


def recovered(evidence: Evidence) -> Finding:
    """Perplexity of the plus recipe at its end over that of the original, which the divergence has as its aim."""
    curve, original = _curves(evidence, COMMON_BETA, "plus"), _curves(evidence, 0.0, "original")
    trained, rows = last_points(original), last_points(curve)
    ratio = _over(rows, original[original["tokens"] == 0])
    text = (
        f"{label(rows['model'].iloc[0])}, {arm_label('plus')}, β {COMMON_BETA:g}, {rows['tokens'].max():,} tokens: "
        f"{estimated(*ratio, 3)} times the perplexity of the original, "
        f"{estimated(*_over(rows, trained), 3)} times that of the original after "
        f"{trained['tokens'].max():,} tokens of its own ({_seeds(rows)})"
    )
    holds, still_open = at_most(ALLOWED_RATIO, [ratio])
    if not holds:
        still_open = _falls(curve) or still_open
    return _finding(rows, holds, still_open, text, curve, original)


def reused(evidence: Evidence, reused: str, fresh: str) -> Finding:
    """Perplexity of a model trained from random weights (the arm `fresh`) over that of one trained likewise from the
    original's (`reused`), at the largest fraction of heads that the fresh arm has.
    """
    beta = float(evidence.rows(KIND, arm=fresh)["beta"].max())
    curves = _curves(evidence, beta, reused, fresh)
    rows = last_points(curves)
    if rows["tokens"].nunique() > 1:
        raise Undecided(f"{arm_label(reused)} and {arm_label(fresh)} saw unequal numbers of tokens")
    ratio = _over(*(rows[rows["arm"] == arm] for arm in (fresh, reused)))
    text = (
        f"{label(rows['model'].iloc[0])}, β {beta:g}, {rows['tokens'].max():,} tokens: from random weights "
        f"{estimated(*ratio, 3)} times the perplexity from reused ones ({_seeds(rows)})"
    )
    no_worse, still_open = at_most(1, [ratio])
    return _finding(rows, not no_worse, still_open, text, curves)


def tokens(evidence: Evidence, within: float) -> Finding:
    """The fewest tokens at which any arm of the paper's block comes back `within` so many times the perplexity of the
    original as it was.
    """
    original = _curves(evidence, 0.0, "original")
    model = original["model"].iloc[0]
    measured = set(evidence.rows(KIND, model=model, beta=COMMON_BETA)["arm"])
    curves = {arm: _curves(evidence, COMMON_BETA, arm) for arm in ("paper", "calibrated", "plus") if arm in measured}
    if not curves:
        raise Missing("no recipe of the paper's block was measured")
    texts, back, sure = [], False, False
    before = original[original["tokens"] == 0]
    for arm, rows in curves.items():
        ratios = {int(tokens): _over(point, before) for tokens, point in groups(rows, "tokens")}
        reached = [tokens for tokens, ratio in ratios.items() if ratio.mean <= within]
        back |= bool(reached)
        sure |= any(ratio.high <= within for ratio in ratios.values())
        last = max(ratios)
        texts.append(
            f"{arm_label(arm)}: {min(reached):,} tokens" if reached
            else f"{arm_label(arm)}: not within {last:,} tokens ({ratios[last].mean:.2f} times)"
        )  # fmt: skip
    still_open = "" if sure else OPEN if back else "more tokens may bring it"
    rows = pd.concat(curves.values())
    text = f"{label(model)}, β {COMMON_BETA:g}: {'; '.join(texts)} ({_seeds(rows)})"
    return _finding(rows, back, still_open, text, original)


def equal_bytes(evidence: Evidence) -> Finding:
    """Divergence from the original of Mamba's state against a window of the same bytes, on the same windows of text.

    An arm that loses may still learn. Whatever it may learn, the state has lost at the tokens that were measured where
    the untrained window is nearer than the nearest of the longest trained Mamba blocks of as many bytes.
    """
    every = evidence.rows(KIND, beta=COMMON_BETA)
    names = every.loc[at_equal_bytes(every), "arm"].unique()
    if not len(names):
        raise Missing("no recipes were compared at equal bytes")
    curves = _curves(evidence, COMMON_BETA, *names)
    curves = curves.assign(held=state_bytes(curves))
    rows = last_points(curves)
    state = rows[rows["mixer"] == "mamba"]
    if state.empty or "window" not in set(rows["mixer"]):
        raise Missing("a Mamba state and a window of the same bytes are compared; one of them was not measured")
    held = state["held"].min() / SAME_BYTES, state["held"].max() * SAME_BYTES
    rows = rows[rows["held"].between(*held) & rows["tokens"].isin(state["tokens"])]
    nearest_first = rows.groupby(["mixer", "arm"])["divergence"].mean().sort_values().reset_index()
    rows = rows[rows["arm"].isin(nearest_first.drop_duplicates("mixer")["arm"])]  # every mixer's best
    ends = dict(groups(rows, "mixer"))
    if "window" not in ends:
        raise Undecided("the Mamba state and the window differ in their bytes or in their tokens")
    holds, still_open = at_most(0, [_gap(ends["mamba"], ends["window"], "divergence")])
    curves = curves[curves["held"].between(*held) & curves["arm"].isin(rows["arm"])]
    window = curves[(curves["mixer"] == "window") & (curves["tokens"] == 0)]
    blocks = every[(every["mixer"] == "mamba") & (every["model"] == rows["model"].iloc[0])]
    blocks = blocks[state_bytes(blocks).between(*held) & (blocks["tokens"] == blocks["tokens"].max())]
    nearest = blocks[blocks["arm"] == blocks.groupby("arm")["divergence"].mean().idxmin()]
    apart_by = _gap(nearest, window, "divergence") if len(window) else None
    lost = not holds and apart_by is not None and apart_by.low > 0
    if not lost:
        still_open = _falls(curves[curves["mixer"] == ("window" if holds else "mamba")]) or still_open
    apart = ", ".join(
        f"{name} {ends[mixer]['divergence'].mean():.3f} ({_seeds(ends[mixer])})"
        for mixer, name in RECOVERED_BY.items()
        if mixer in ends
    )
    untrained = f"untrained window {window['divergence'].mean():.3f}, " if len(window) else ""
    further = f", further by {estimated(*apart_by, 3)}" if apart_by else ""
    text = (
        f"{label(rows['model'].iloc[0])}, KL: {untrained}Mamba state after {nearest['tokens'].max():,} tokens "
        f"{nearest['divergence'].mean():.3f} ({_seeds(nearest)}{further}); "
        f"after {rows['tokens'].max():,} tokens: {apart}"
    )
    decided_by: pd.DataFrame = pd.concat([ends["mamba"], ends["window"]])
    return _finding(decided_by, holds, "" if lost else still_open, text, curves, nearest)
