"""Whether what was compared holds, and for sure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from recurformer.paper import BACKBONE_LABELS, label
from recurformer.render.ablations import Measure, scores, why_not_run
from recurformer.render.claims.claim import Finding, Missing, Undecided
from recurformer.render.claims.evidence import Evidence
from recurformer.render.claims.pairings import Comparison, Pairing
from recurformer.render.measurements import models_in_order
from recurformer.tasks.interval import Estimate

ROUNDING = 1e-9
FOR_SURE, AT_BEST = ("low", "high"), ("high", "low")
"""Ends of our interval and of theirs: our margin at the least, and at the most."""
OPEN = {True: "within the 95 % intervals of both", False: "one sample has no interval"}


def comparisons(evidence: Evidence, measures: Iterable[Measure], pair: Pairing) -> list[Comparison]:
    """The comparisons of all models that have learned a measure's task, for all measures that there are.

    Raises:
        Missing: nothing was measured to compare with; the message has every reason.
        Undecided: no model has learned the task, likewise.
    """
    found: list[Comparison] = []
    reasons: list[Missing] = []
    for measure in measures:
        try:
            points = evidence.derived(measure.kind, measure, partial(scores, measure=measure))
        except Missing as missing:
            reasons.append(missing)
            continue
        for model in models_in_order(points):
            of_model = points[points["model"] == model]
            try:
                if reason := why_not_run(of_model, measure).removeprefix("not-run: "):
                    raise Undecided(reason)
                if not (pairs := pair(of_model, measure)):
                    raise Missing(f"{label(model)}, {measure.name}: nothing measured to compare with")
            except Missing as missing:
                reasons.append(missing)
                continue
            found += pairs
            unchanged = of_model.loc[of_model["family"] == "original", "rows"]
            evidence.count(measure.kind, *unchanged, *(one.rows for one in pairs))
    if not found:
        raise because(reasons)
    return found


def because(reasons: Sequence[Missing]) -> Missing:
    """All reasons in one: undecided where one of them is."""
    undecided = any(isinstance(reason, Undecided) for reason in reasons)
    return (Undecided if undecided else Missing)("; ".join(dict.fromkeys(map(str, reasons))))


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

    A test is neither won nor lost with a comparison in which the loss of what falls short still falls.

    Args:
        found: the comparisons, at least one.
        by_beta: each β is a test of its own; else the mean over the β that were compared.
        allowed: by how much it may fall short, in the measure's score.
    """
    why = [one.why_undecided(allowed) for one in found]
    if not any(why):
        return _judged(found, by_beta, allowed)
    still_open = {_test_of(one, by_beta) for one, reason in zip(found, why, strict=True) if reason}
    decisive = [one for one in found if _test_of(one, by_beta) not in still_open]
    if decisive and not (lost := _judged(decisive, by_beta, allowed)).holds:
        return lost
    return replace(_judged(found, by_beta, allowed), decided=False, reason="; ".join(filter(None, dict.fromkeys(why))))


def _test_of(one: Comparison, by_beta: bool) -> tuple[object, ...]:
    """Which comparisons are one test, the mean over them."""
    return one.measure.kind, one.model, one.other, one.beta if by_beta else None


def _judged(found: Sequence[Comparison], by_beta: bool, allowed: float) -> Finding:
    parted: dict[tuple[object, ...], list[Comparison]] = {}
    for one in found:
        parted.setdefault(_test_of(one, by_beta), []).append(one)
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
        decided=decided, reason="" if decided else OPEN[several],
    )  # fmt: skip
