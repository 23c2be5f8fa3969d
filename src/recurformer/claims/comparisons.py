"""RecurFormer beside others: what is set beside what, and whether what was compared holds, and for sure."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from recurformer.claims.claim import ALLOWED_DROP, ALLOWED_RATIO, ROUNDING, Finding
from recurformer.claims.evidence import Evidence, Missing, Rows, Undecided
from recurformer.data.interval import Estimate
from recurformer.paper import BACKBONE_LABELS, label
from recurformer.results.frames import by_model, groups
from recurformer.results.learned import FALL, why_undecided
from recurformer.results.scores import (
    HASHHOP,
    MEASURES,
    METHODS,
    PAPERS_SELECTOR,
    Measure,
    after_training,
    at_cache,
    method_label,
    of,
    original,
    why_not_run,
)
from recurformer.study.ablations import COMMON_BETA

SAME_CACHE = 0.05
"""Shares of the cache that differ by no more are about the same."""
RECURFORMER = "RecurFormer"


@dataclass(frozen=True)
class Comparison:
    """RecurFormer's score, `name` in print, beside that of another method, for one model at one β.

    Attributes:
        samples: behind RecurFormer's score.
        falls: of the losses of both trainings, ours and theirs.
        rows: labels of the measurements that it rests on.
    """

    measure: Measure
    model: str
    other: str
    beta: float
    ours: Estimate
    theirs: Estimate
    samples: int
    falls: tuple[float, float]
    rows: tuple[int, ...]
    name: str = RECURFORMER

    def why_undecided(self, allowed: float) -> str:
        """Why it says nothing: the loss of the training that falls short by more than is allowed still falls."""
        short = self.ours.mean + allowed < self.theirs.mean
        reason = why_undecided(self.falls[0 if short else 1])
        named = f"{label(self.model)}, {self.name if short else self.other} at β {self.beta:g}"
        return f"{named}: {reason}" if reason else ""


def recurformer(points: pd.DataFrame, arm: str = "") -> pd.DataFrame:
    """RecurFormer's scores: the paper's choice of heads replaced by Mamba, trained where it was trained; or what
    another recipe of recovery, an arm, gave.
    """
    return of(points, "recovered", arm) if arm else after_training(of(points, "mixer", "mamba"))


def nearest_beta(points: pd.DataFrame) -> pd.DataFrame:
    """One row, of the β nearest to the common one."""
    return points.sort_values("setting", key=lambda setting: (setting - COMMON_BETA).abs(), kind="stable").head(1)


def beside_same_cache(
    points: pd.DataFrame, measure: Measure, ours: pd.DataFrame, family: str, *methods: str
) -> list[Comparison]:
    """RecurFormer beside each method of a family, or the named ones, at the cache that RecurFormer holds, the original
    being all of it.
    """
    found = []
    for method, rows in groups(after_training(of(points, family, *methods)), "method"):
        span = pd.concat([rows, original(points, bool(rows["trained"].any()))])
        for _, row in ours.iterrows():
            theirs = at_cache(span, row["ratio"])
            if theirs is not None:
                found.append(_compare(measure, row, method_label(family, method), theirs))
    return found


def _alike(points: pd.DataFrame, other: pd.Series, method: str) -> pd.DataFrame:
    """A mixer in the place of the heads that RA-I chooses, at the setting of another, trained or not as that one."""
    ours = of(points, "mixer", method)
    return ours[(ours["setting"] == other["setting"]) & (ours["trained"] == other["trained"])]


def beside_mixers(points: pd.DataFrame, measure: Measure, _: pd.DataFrame, *methods: str) -> list[Comparison]:
    """Mamba beside other mixers on the same heads, all of them trained, at those settings at which the model misses the
    heads: where it does as well without them, nothing in their place can show what it is worth.
    """
    trained = points[points["trained"]]
    removed, others = of(trained, "mixer", "zero"), of(trained, "mixer", *methods)
    unmissed = removed.loc[removed["high"] >= original(points, trained=True)["mean"].max(), "setting"]
    return [
        _compare(measure, ours, method_label("mixer", other["method"]), other, also=sum(removed["rows"], ()))
        for _, other in others[~others["setting"].isin(unmissed)].iterrows()
        for _, ours in _alike(points, other, "mamba").iterrows()
    ]


def beside_layers(points: pd.DataFrame, measure: Measure, _: pd.DataFrame) -> list[Comparison]:
    """Heads beside whole layers, replaced by the same mixer, where both hold about the same cache: a share of few
    layers is often not the share of heads that was asked for.
    """
    return [
        replace(
            _compare(measure, ours, method_label("layers", other["method"]), other),
            name=f"heads by {method_label('mixer', other['method'])}",
        )
        for _, other in of(points, "layers").iterrows()
        for _, ours in _alike(points, other, other["method"]).iterrows()
        if abs(ours["ratio"] - other["ratio"]) <= SAME_CACHE
    ]


def beside_ranking(points: pd.DataFrame, measure: Measure, _: pd.DataFrame, by: str) -> list[Comparison]:
    """Heads chosen by RA-I beside heads chosen by another ranking, replaced by the same mixer at equal β."""
    return [
        replace(
            _compare(measure, ours, f"{by} choice", other),
            name=f"RA-I's choice ({method_label('mixer', other['method'])})",
        )
        for _, other in points[(points["family"] == "mixer") & (points["by"] == by)].iterrows()
        for _, ours in _alike(points, other, other["method"]).iterrows()
    ]


def beside_original(points: pd.DataFrame, measure: Measure, ours: pd.DataFrame) -> list[Comparison]:
    """RecurFormer beside the original, trained likewise where it was."""
    return [
        _compare(measure, row, "the original", theirs.iloc[0])
        for _, row in ours.iterrows()
        if len(theirs := original(points, row["trained"]))
    ]


PAIRINGS: dict[str, Callable[..., list[Comparison]]] = {
    "same_cache": beside_same_cache,
    "mixers": beside_mixers,
    "layers": beside_layers,
    "ranking": beside_ranking,
    "original": beside_original,
}
"""What RecurFormer is set beside -> the comparisons, from the scores of one model and RecurFormer's among them."""


def _compare(
    measure: Measure, ours: pd.Series, other: str, theirs: pd.Series, also: tuple[int, ...] = ()
) -> Comparison:
    """Two points side by side; `also` are the rows that decided whether they are compared."""
    score = list(Estimate._fields)
    return Comparison(
        measure, ours["model"], other, ours["setting"], Estimate(*ours[score]), Estimate(*theirs[score]),
        int(ours["samples"]), (ours[FALL], theirs[FALL]), (*ours["rows"], *theirs["rows"], *also),
        RECURFORMER if ours["family"] != "recovered" else method_label("recovered", ours["method"]),
    )  # fmt: skip


ALLOWED = {"": 0.0, "h_gq": ALLOWED_DROP, "perplexity": math.log(ALLOWED_RATIO), "others_fall": -ALLOWED_DROP}
"""Printed quantity -> by how much the paper lets its score fall short; the last: how far the others must fall short."""


def comparisons(
    evidence: Evidence, measures: Iterable[Measure], pair: Callable[[pd.DataFrame, Measure], list[Comparison]]
) -> list[Comparison]:
    """The comparisons of all models that have learned a measure's task, for all measures that there are.

    Raises:
        Missing: nothing was measured to compare with; the message has every reason.
        Undecided: no model has learned the task, likewise.
    """
    found: list[Comparison] = []
    reasons: list[Missing] = []
    for measure in measures:
        try:
            points = evidence.scores(measure)
        except Missing as missing:
            reasons.append(missing)
            continue
        for model, of_model in by_model(points):
            try:
                if reason := why_not_run(of_model, measure):
                    raise Undecided(reason)
                if not (pairs := pair(of_model, measure)):
                    raise Missing(f"{label(model)}, {measure.name}: nothing measured to compare with")
            except Missing as missing:
                reasons.append(missing)
                continue
            unchanged = sum(of_model.loc[of_model["family"] == "original", "rows"], ())
            found += [replace(one, rows=(*one.rows, *unchanged)) for one in pairs]
    if not found:
        raise because(reasons)
    return found


def rows_of(found: Iterable[Comparison]) -> Rows:
    """The measurements that comparisons rest on."""
    rows: dict[str, list[int]] = {}
    for one in found:
        rows.setdefault(one.measure.kind, []).extend(one.rows)
    return rows


def because(reasons: Sequence[Missing]) -> Missing:
    """All reasons in one: undecided where one of them is."""
    undecided = any(isinstance(reason, Undecided) for reason in reasons)
    return (Undecided if undecided else Missing)("; ".join(dict.fromkeys(map(str, reasons))))


def _means(group: Sequence[Comparison]) -> Iterator[Estimate]:
    """Ours and theirs, each the mean over a group."""
    for side in ("ours", "theirs"):
        yield Estimate(*np.mean([getattr(one, side) for one in group], axis=0).tolist())


def _margin(group: Sequence[Comparison], our_end: str = "mean", their_end: str = "mean") -> float:
    """How far our mean over a group is above theirs, each taken at its mean or at one end of its interval."""
    ours, theirs = _means(group)
    return float(getattr(ours, our_end) - getattr(theirs, their_end))


def _sentence(group: Sequence[Comparison]) -> str:
    first, (ours, theirs) = group[0], _means(group)
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
        return replace(lost, rows=rows_of(found))
    return replace(_judged(found, by_beta, allowed), still_open="; ".join(filter(None, dict.fromkeys(why))))


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
    samples = min(one.samples for one in found)
    sure = all(_margin(test, "low", "high") + allowed >= 0 for test in tests)
    lost = any(_margin(test, "high", "low") + allowed < 0 for test in tests)
    decided = samples > 1 and (sure if holds else lost)
    why = "" if decided else "within the 95 % intervals of both" if samples > 1 else "one sample has no interval"
    won = sum(margin + ROUNDING >= 0 for margin in margins)
    worst = {(test[0].measure.kind, test[0].model): test for test in tests}
    text = "; ".join(map(_sentence, worst.values()))
    if len(tests) > len(worst):
        text = f"{won} of {len(tests)} comparisons are no worse; the least favourable of each model: {text}"
    at_scale = set(BACKBONE_LABELS) <= {one.model for one in found}
    return Finding(holds, text, at_scale, rows_of(found), samples, why)


def _comparisons(
    evidence: Evidence,
    beside: Mapping[str, Sequence[str]],
    measures: Sequence[str] = ("hashhop", "needle", "continuation"),
    common: bool = False,
    arm: str = "",
) -> list[Comparison]:
    def pair(points: pd.DataFrame, measure: Measure) -> list[Comparison]:
        ours = recurformer(points, arm)
        ours = nearest_beta(ours) if common else ours
        return [one for name, which in beside.items() for one in PAIRINGS[name](points, measure, ours, *which)]

    return comparisons(evidence, [MEASURES[name] for name in measures], pair)


def compared(
    evidence: Evidence, by_beta: bool = False, allowed: str = "", smallest: bool = False, **what: Any
) -> Finding:
    """Each measure of RecurFormer's quality beside that of others.

    Args:
        evidence: of the ablations.
        by_beta: each β is a test of its own; else the mean over the β that were compared.
        allowed: the quantity, of `ALLOWED`, whose printed loss is allowed.
        smallest: say too how small a cache may be.
        what: beside (name in `PAIRINGS` -> which of it), measures (of `MEASURES`; else the first three), common
            (RecurFormer at the common β alone), arm (see `recurformer.claims.comparisons.recurformer`).
    """
    finding = judge_comparisons(_comparisons(evidence, **what), by_beta, ALLOWED[allowed])
    return _with_smallest(evidence, finding) if smallest else finding


def compared_with_plus(evidence: Evidence, **how: Any) -> Finding:
    """As `compared`: what the paper's recipe gave decides; what the plus recipe gave is told besides, not counted."""
    told = ""
    with suppress(Missing):
        plus = compared(evidence, arm="plus", **how)
        holds = "holds" if plus.holds else "fails"
        told = f"; not counted: {plus.ours} ({holds if plus.decided else f'{holds}, undecided'})"
    try:
        finding = compared(evidence, **how)
    except Missing as missing:
        raise type(missing)(f"{missing}{told}") from None
    return replace(finding, ours=f"{finding.ours}{told}")


def mixers(evidence: Evidence, others: Sequence[str]) -> Finding:
    """Mamba beside other mixers on the same heads, all of them trained, at equal β; each of them must have been."""
    found = []
    for other in others:
        try:
            found += _comparisons(evidence, {"mixers": [other]})
        except Missing as missing:
            where = "on the same heads, at a β at which the model misses them"
            raise type(missing)(f"{method_label('mixer', other)} {where}: {missing}") from None
    return _with_smallest(evidence, judge_comparisons(found))


def _smallest_caches(points: pd.DataFrame) -> str:
    """The smallest cache at which RecurFormer, and what needs no more, is as near to the original as is allowed."""
    smallest: dict[str, float] = {}
    for family in METHODS:
        for method, rows in groups(after_training(of(points, family)), "method") if family != "original" else ():
            unchanged = original(points, bool(rows["trained"].any()))["mean"].max()
            kept = rows[(rows["mean"] >= unchanged - ALLOWED_DROP) & (rows["ratio"] < 1)]
            if len(kept):
                smallest[method_label(family, method)] = float(kept["ratio"].min())
    ours = smallest.get(method_label("mixer", "mamba"), 1.0)
    shown = sorted((ratio, name) for name, ratio in smallest.items() if ratio <= ours)
    return ", ".join([*(f"{ratio:.2f} ({name})" for ratio, name in shown), "all others need more"] if shown else [])


def _with_smallest(evidence: Evidence, finding: Finding) -> Finding:
    """The same, with the smallest caches of all models that have learned HashHop."""
    try:
        points = evidence.scores(HASHHOP)
    except Missing:
        return finding
    learned = {model: found for model, found in by_model(points) if not why_not_run(found, HASHHOP)}
    chosen = points["by"].isin([PAPERS_SELECTOR, ""]) & points["family"].isin(METHODS)
    shown = points[chosen & points["model"].isin(learned)]
    said = [
        f"{label(model)} stays within {ALLOWED_DROP:g} of the original's h_gq down to a cache of {found}"
        for model, of_model in learned.items()
        if (found := _smallest_caches(of_model))
    ]
    rows = {**finding.rows, HASHHOP.kind: [*finding.rows.get(HASHHOP.kind, ()), *sum(shown["rows"], ())]}
    return replace(finding, ours="; ".join([finding.ours, *said]), rows=rows)
