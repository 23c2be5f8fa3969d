"""Comparing what was done to the same model: at the same setting, or at the same cache."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from recurformer.paper import BACKBONE_LABELS, label
from recurformer.render.ablations import (
    CONTINUATION,
    Measure,
    after_training,
    at_cache,
    method_label,
    of,
    scores,
    why_not_run,
)
from recurformer.render.claims.claim import Finding, Missing
from recurformer.render.claims.evidence import Evidence
from recurformer.render.measurements import groups, models_in_order
from recurformer.tasks.interval import Estimate

COMMON_BETA = 0.5
"""The share of heads replaced that is compared where one is: the measured one nearest to it."""
SAME_CACHE = 0.05
"""Shares of the cache that differ by no more are about the same."""
RECURFORMER = "RecurFormer"
ROUNDING = 1e-9
FOR_SURE, AT_BEST = ("low", "high"), ("high", "low")
"""Ends of our interval and of theirs: our margin at the least, and at the most."""
UNDECIDED = {True: "within the 95 % intervals of both", False: "one sample has no interval"}


@dataclass(frozen=True)
class Comparison:
    """RecurFormer's score beside another's, for one model at one β.

    Attributes:
        measure: of both scores.
        model: what was changed.
        other: name of the other method in print.
        beta: share of heads replaced.
        ratio: share of the cache that RecurFormer held.
        ours: RecurFormer's score.
        theirs: the other's.
        samples: behind RecurFormer's.
        name: of ours in print.
    """

    measure: Measure
    model: str
    other: str
    beta: float
    ratio: float
    ours: Estimate
    theirs: Estimate
    samples: int
    name: str = RECURFORMER


Pairing = Callable[[pd.DataFrame, Measure], list[Comparison]]
"""The scores of one model -> its comparisons."""


def _estimate(row: pd.Series) -> Estimate:
    return Estimate(row["mean"], row["low"], row["high"])


def _ours(points: pd.DataFrame) -> pd.DataFrame:
    return after_training(of(points, "mixer", "mamba"))


def _nearest_beta(points: pd.DataFrame) -> pd.DataFrame:
    return points.sort_values("setting", key=lambda setting: (setting - COMMON_BETA).abs(), kind="stable").head(1)


def at_same_cache(family: str, *methods: str, common: bool = False) -> Pairing:
    """RecurFormer beside each method of a family at the cache that RecurFormer holds, the original being all of it.

    Args:
        family: of the others.
        methods: some of them; all where none is named.
        common: at the common β alone.
    """

    def pair(points: pd.DataFrame, measure: Measure) -> list[Comparison]:
        ours = _nearest_beta(_ours(points)) if common else _ours(points)
        found = []
        for method, rows in groups(after_training(of(points, family, *methods)), "method"):
            span = pd.concat([rows, _original(points, bool(rows["trained"].any()))])
            for _, row in ours.iterrows():
                theirs = at_cache(span, row["ratio"])
                if theirs is not None:
                    found.append(_compare(measure, row, method_label(family, method), theirs))
        return found

    return pair


def _original(points: pd.DataFrame, trained: bool) -> pd.DataFrame:
    """The original, trained likewise where it was measured so."""
    originals = points[points["family"] == "original"]
    alike = originals[originals["trained"] == trained]
    return originals if alike.empty else alike


def _alike(points: pd.DataFrame, other: pd.Series, method: str) -> pd.DataFrame:
    """A mixer in the place of the heads that RA-I chooses, at the setting of another, trained or not as that one."""
    ours = of(points, "mixer", method)
    return ours[(ours["setting"] == other["setting"]) & (ours["trained"] == other["trained"])]


def beside_mixers(*methods: str) -> Pairing:
    """Mamba beside other mixers on the same heads, all of them trained."""

    def pair(points: pd.DataFrame, measure: Measure) -> list[Comparison]:
        others = of(points[points["trained"]], "mixer", *methods)
        return [
            _compare(measure, ours, method_label("mixer", other["method"]), _estimate(other))
            for _, other in others.iterrows()
            for _, ours in _alike(points, other, "mamba").iterrows()
        ]

    return pair


def beside_layers(points: pd.DataFrame, measure: Measure) -> list[Comparison]:
    """Heads beside whole layers, replaced by the same mixer, where both hold about the same cache: a share of few
    layers is often not the share of heads that was asked for.
    """
    return [
        replace(
            _compare(measure, ours, method_label("layers", other["method"]), _estimate(other)),
            name=f"heads by {method_label('mixer', other['method'])}",
        )
        for _, other in of(points, "layers").iterrows()
        for _, ours in _alike(points, other, other["method"]).iterrows()
        if abs(ours["ratio"] - other["ratio"]) <= SAME_CACHE
    ]


def chosen_otherwise(by: str) -> Pairing:
    """Heads chosen by RA-I beside heads chosen by another ranking, replaced by the same mixer at equal β."""

    def pair(points: pd.DataFrame, measure: Measure) -> list[Comparison]:
        others = points[(points["family"] == "mixer") & (points["by"] == by)]
        return [
            replace(_compare(measure, ours, f"{by} choice", _estimate(other)), name=f"RA-I's choice ({mixer})")
            for _, other in others.iterrows()
            for mixer in [method_label("mixer", other["method"])]
            for _, ours in _alike(points, other, other["method"]).iterrows()
        ]

    return pair


def beside_original(points: pd.DataFrame, measure: Measure) -> list[Comparison]:
    """RecurFormer at the common β beside the original, trained likewise where it was."""
    return [
        _compare(measure, row, "the original", _estimate(_original(points, row["trained"]).iloc[0]))
        for _, row in _nearest_beta(_ours(points)).iterrows()
    ]


def _compare(measure: Measure, ours: pd.Series, other: str, theirs: Estimate) -> Comparison:
    return Comparison(
        measure, ours["model"], other, ours["setting"], ours["ratio"], _estimate(ours), theirs, int(ours["samples"])
    )


def too_short(evidence: Evidence, model: str) -> str:
    """Why a model's training with Mamba in it decides nothing: it has not even learned to speak again."""
    try:
        points = evidence.derived(CONTINUATION.kind, CONTINUATION, partial(scores, measure=CONTINUATION))
    except Missing:
        return ""
    ours = _ours(points[points["model"] == model])
    if ours.empty or ours["mean"].max() >= CONTINUATION.needed:
        return ""
    reached, needed = CONTINUATION.shown(ours["mean"].max()), CONTINUATION.shown(CONTINUATION.needed)
    return f"{label(model)}'s training after the conversion was too short: perplexity {reached:.3g}, above {needed:.3g}"


def comparisons(evidence: Evidence, measures: Iterable[Measure], pair: Pairing) -> list[Comparison]:
    """The comparisons of all models that have learned a measure's task, for all measures that there are.

    RecurFormer is left out where it has not learned the language of the articles again, whatever the measure.

    Raises:
        Missing: there are none; the message has every reason.
    """
    found: list[Comparison] = []
    reasons: list[str] = []
    for measure in measures:
        try:
            points = evidence.derived(measure.kind, measure, partial(scores, measure=measure))
        except Missing as missing:
            reasons.append(str(missing))
            continue
        for model in models_in_order(points):
            of_model = points[points["model"] == model]
            reason = why_not_run(of_model, measure).removeprefix("not-run: ")
            pairs = [] if reason else pair(of_model, measure)
            if not reason and (reason := too_short(evidence, model)):
                pairs = [one for one in pairs if one.name != RECURFORMER]
            found += pairs
            if not pairs:
                reasons.append(reason or f"{label(model)}, {measure.name}: nothing measured to compare with")
    if not found:
        raise Missing("; ".join(dict.fromkeys(reasons)))
    return found


def _mean(estimates: Sequence[Estimate]) -> Estimate:
    return Estimate(*(float(value) for value in np.mean(estimates, axis=0)))


def _margin(group: Sequence[Comparison], our_end: str = "mean", their_end: str = "mean") -> float:
    """How far our mean over a group is above theirs, each taken at its mean or at one end of its interval."""
    ours, theirs = _mean([one.ours for one in group]), _mean([one.theirs for one in group])
    return float(getattr(ours, our_end) - getattr(theirs, their_end))


def _sentence(group: Sequence[Comparison]) -> str:
    first = group[0]
    ours, theirs = (_mean([getattr(one, side) for one in group]) for side in ("ours", "theirs"))
    betas = ", ".join(f"{beta:g}" for beta in sorted({one.beta for one in group}))
    return (
        f"{label(first.model)}, {first.measure.name} at β {betas}: {first.name} {first.measure.shown(ours.mean):.3g}, "
        f"{first.other} {first.measure.shown(theirs.mean):.3g}"
    )


def judge_comparisons(found: Sequence[Comparison], by_beta: bool = False, allowed: float = 0.0) -> Finding:
    """RecurFormer scores at least what every other does, less what is allowed.

    Args:
        found: the comparisons, at least one.
        by_beta: each β is a test of its own; else the mean over the β that were compared.
        allowed: by how much it may fall short, in the measure's score.
    """
    parted: dict[tuple[object, ...], list[Comparison]] = {}
    for one in found:
        parted.setdefault((one.measure.kind, one.model, one.other, one.beta if by_beta else None), []).append(one)
    tests = sorted(parted.values(), key=_margin, reverse=True)
    margins = [_margin(test) + allowed for test in tests]
    holds = margins[-1] + ROUNDING >= 0
    several = min(one.samples for one in found) > 1
    sure = all(_margin(test, *FOR_SURE) + allowed >= 0 for test in tests)
    lost = any(_margin(test, *AT_BEST) + allowed < 0 for test in tests)
    decided = several and (sure if holds else lost)
    won = sum(margin + ROUNDING >= 0 for margin in margins)
    worst = {(test[0].measure.kind, test[0].model): test for test in tests}
    text = "; ".join(map(_sentence, worst.values()))
    if len(tests) > len(worst):
        text = f"{won} of {len(tests)} comparisons hold; the least favourable of each model: {text}"
    models = {one.model for one in found}
    return Finding(
        holds, text, at_scale=set(BACKBONE_LABELS) <= models, samples=min(one.samples for one in found),
        decided=decided, reason="" if decided else UNDECIDED[several],
    )  # fmt: skip
