"""What recovery shows, which the paper does not claim: how far and how fast models come back, and by which mixer."""

import math

import pandas as pd

from recurformer.paper import BACKBONE_LABELS, label
from recurformer.render.claims.claim import Finding, Missing, Undecided
from recurformer.render.claims.evidence import Evidence
from recurformer.render.claims.tolerances import ALLOWED_RATIO
from recurformer.render.measurements import groups, models_in_order
from recurformer.render.recovery import MIXERS, POINT, arm_label, at_equal_bytes
from recurformer.tasks.interval import Estimate, mean_interval

KIND = "recovery"
BETA = 0.5
WITHIN = 1.05
"""Of the original's perplexity: what "back" means."""


def _curves(evidence: Evidence, beta: float, *arms: str) -> pd.DataFrame:
    """The points of some arms of the first model, at one share of heads.

    Raises:
        Missing: one of them was not measured.
    """
    model = models_in_order(evidence.look(KIND))[0]
    for arm in arms:
        evidence.look(KIND, model=model, arm=arm, beta=beta)
    return evidence.rows(KIND, model=model, arm=list(arms), beta=beta)


def _ends(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["tokens"] == rows.groupby(POINT[:-1])["tokens"].transform("max")]


def _ratio(ours: pd.DataFrame, theirs: pd.DataFrame) -> Estimate:
    """Perplexity over perplexity on the same windows, with the interval of the paired differences."""
    nats = [rows.groupby("window")["negative_log_likelihood"].mean() for rows in (ours, theirs)]
    return Estimate(*(math.exp(limit) for limit in mean_interval((nats[0] - nats[1]).dropna().to_numpy())))


def _original(evidence: Evidence) -> pd.DataFrame:
    """The untouched original: the first point of its own training."""
    rows = _curves(evidence, 0.0, "original")
    return rows[rows["tokens"] == 0]


def _finding(rows: pd.DataFrame, holds: bool, text: str, reason: str) -> Finding:
    """With a reason it is open."""
    at_scale = rows["model"].iloc[0] in BACKBONE_LABELS
    return Finding(holds, text, at_scale, rows["window"].nunique(), reason, decided=not reason)


def judge_recovered(evidence: Evidence, arm: str = "plus") -> Finding:
    """Perplexity of an arm at its end over that of the original trained on as many tokens or more."""
    rows, trained = _ends(_curves(evidence, BETA, arm)), _ends(_curves(evidence, 0.0, "original"))
    if trained["tokens"].max() < 0.9 * rows["tokens"].max():
        raise Undecided(f"the original was trained on {trained['tokens'].max():,} tokens, fewer than the converted one")
    ratio = _ratio(rows, trained)
    text = (
        f"{label(rows['model'].iloc[0])}, {arm_label(arm)}, β {BETA:g}, {rows['tokens'].max():,} tokens: "
        f"{ratio.mean:.3f} times the perplexity of the original trained likewise [{ratio.low:.3f}, {ratio.high:.3f}]"
    )
    reason = "the interval holds what is allowed" if ratio.low <= ALLOWED_RATIO < ratio.high else ""
    return _finding(rows, ratio.mean <= ALLOWED_RATIO, text, reason)


def judge_tokens(evidence: Evidence) -> Finding:
    """The fewest tokens at which any arm comes within 5 % of the original as it was."""
    original = _original(evidence)
    model = original["model"].iloc[0]
    arms = [arm for arm in ("paper", "calibrated", "plus") if (evidence.look(KIND, model=model)["arm"] == arm).any()]
    if not arms:
        raise Missing("no arm of the paper's block was measured")
    told, reached = [], False
    for arm in arms:
        rows = _curves(evidence, BETA, arm)
        ratios = {int(tokens): _ratio(point, original).mean for tokens, point in groups(rows, "tokens")}
        back = [tokens for tokens, ratio in ratios.items() if ratio <= WITHIN]
        reached |= bool(back)
        last = max(ratios)
        told.append(
            f"{arm_label(arm)}: {min(back):,} tokens" if back
            else f"{arm_label(arm)}: not within {last:,} tokens ({ratios[last]:.2f} times)"
        )  # fmt: skip
    reason = "" if reached else "more tokens may bring it"
    return _finding(rows, reached, f"{label(model)}, β {BETA:g}: {'; '.join(told)}", reason)


def judge_equal_bytes(evidence: Evidence) -> Finding:
    """Divergence from the original of Mamba's state against a window of the same bytes, on the same windows of text."""
    look = evidence.look(KIND)
    names = look.loc[at_equal_bytes(look), "arm"].unique()
    if not len(names):
        raise Missing("no recipes were compared at equal bytes")
    rows = _ends(_curves(evidence, BETA, *names))
    by_mixer = {mixer: found.groupby("window")["divergence"].mean() for mixer, found in groups(rows, "mixer")}
    if not {"mamba", "window"} <= by_mixer.keys():
        raise Missing("a Mamba state and a window of the same bytes are compared; one of them was not measured")
    gap = mean_interval((by_mixer["mamba"] - by_mixer["window"]).dropna().to_numpy())
    text = ", ".join(f"{name} {by_mixer[mixer].mean():.3f}" for mixer, name in MIXERS.items() if mixer in by_mixer)
    reason = "within the 95 % interval of the difference" if gap.low <= 0 < gap.high else ""
    told = f"{label(rows['model'].iloc[0])}, KL after {rows['tokens'].max():,} tokens: {text}"
    return _finding(rows, gap.mean <= 0, told, reason)
