"""Whether what was compared holds, and for sure."""

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from recurformer.paper import BACKBONE_LABELS, label
from recurformer.render.ablations import CONTINUATION, Measure, scores, why_not_run
from recurformer.render.claims.claim import Finding, Missing
from recurformer.render.claims.evidence import Evidence
from recurformer.render.claims.pairings import RECURFORMER, Comparison, Pairing, recurformer
from recurformer.render.measurements import models_in_order
from recurformer.tasks.interval import Estimate

ROUNDING = 1e-9
FOR_SURE, AT_BEST = ("low", "high"), ("high", "low")
"""Ends of our interval and of theirs: our margin at the least, and at the most."""
UNDECIDED = {True: "within the 95 % intervals of both", False: "one sample has no interval"}


def too_short(evidence: Evidence, model: str) -> str:
    """Why a model's training with Mamba in it decides nothing: it has not even learned to speak again."""
    try:
        points = evidence.derived(CONTINUATION.kind, CONTINUATION, partial(scores, measure=CONTINUATION))
    except Missing:
        return ""
    ours = recurformer(points[points["model"] == model])
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
        raise Missing("; ".join(dict.fromkeys(reasons)) or "nothing was measured to compare with")
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
        text = f"{won} of {len(tests)} comparisons are no worse; the least favourable of each model: {text}"
    models = {one.model for one in found}
    return Finding(
        holds, text, at_scale=set(BACKBONE_LABELS) <= models, samples=min(one.samples for one in found),
        decided=decided, reason="" if decided else UNDECIDED[several],
    )  # fmt: skip
