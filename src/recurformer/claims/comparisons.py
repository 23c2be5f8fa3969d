"""RecurFormer beside others: what is set beside what, and whether what was compared holds, and for sure."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, get_args

import numpy as np
import pandas as pd

from recurformer.claims.claim import (
    ALLOWED_DROP,
    ALLOWED_RATIO,
    EQUAL,
    EQUAL_NATS,
    ROUNDING,
    Finding,
    at_most,
    drop,
    mean_difference,
)
from recurformer.claims.evidence import Evidence, Missing, Rows, Undecided, because
from recurformer.data.interval import Estimate, bounded_mean
from recurformer.paper import label
from recurformer.results.frames import by_model, groups
from recurformer.results.learned import FALL, why_undecided
from recurformer.results.scores import (
    HASHHOP,
    MEASURES,
    METHODS,
    PAPERS_SELECTOR,
    Measure,
    after_training,
    as_paper_does,
    at_cache,
    at_common_setting,
    less,
    method_label,
    of,
    original,
    why_not_run,
)
from recurformer.study.method import Untrained

SURELY_UNEQUAL = 6
"""Where most samples are equal, fewer that differ may all differ in one direction by chance: 2 · 0.5⁵ is over 0.05."""
SAME_CACHE = 0.05
"""Fractions of the cache that differ by no more are about the same."""
RECURFORMER = "RecurFormer"


@dataclass(frozen=True)
class Comparison:
    """RecurFormer's score, `name` in print, beside that of another method, for one model at one β.

    Attributes:
        samples: behind RecurFormer's score.
        falls: of the losses of both trainings, RecurFormer's first.
        rows: labels of the measurements that it rests on.
        trained: whether one of the two was trained.
        shortfalls: the other's score less RecurFormer's, by sample and seed; none where the samples differ.
    """

    measure: Measure
    model: str
    other: str
    beta: float
    score: Estimate
    other_score: Estimate
    samples: int
    falls: tuple[float, float]
    rows: tuple[int, ...]
    name: str = RECURFORMER
    trained: bool = True
    shortfalls: pd.Series = field(default_factory=lambda: pd.Series(dtype=float), compare=False)

    @cached_property
    def paired(self) -> Estimate | None:
        """How far RecurFormer's score is below the other's on the same samples; None of one sample, and of a single
        training, which may be better or worse by chance.
        """
        if not decides(self.shortfalls, self.measure, self.trained):
            return None
        if self.measure.in_nats:  # the mean over tokens, not over windows
            half = mean_difference(self.shortfalls)
            mean = self.other_score.mean - self.score.mean
            return Estimate(mean, mean + half.low - half.mean, mean + half.high - half.mean)
        return mean_on_same_samples(self.shortfalls, self.measure)

    @property
    def shortfall(self) -> Estimate:
        """How far RecurFormer's score is below the other's: on the same samples, else by intervals that lie apart."""
        return self.paired or drop(self.other_score, self.score)

    def excess(self, allowed: str) -> Estimate:
        """How far the shortfall is beyond what is allowed; see `ALLOWED`."""
        return Estimate(*(one - ALLOWED[allowed][self.measure.in_nats] for one in self.shortfall))

    def why_undecided(self, allowed: str) -> str:
        """Why it says nothing: the loss of the training that falls short by more than is allowed still falls."""
        short = self.excess(allowed).mean > 0
        reason = why_undecided(self.falls[0 if short else 1])
        named = f"{label(self.model)}, {self.name if short else self.other} at β {self.beta:g}"
        return f"{named}: {reason}" if reason else ""


def decides(differences: pd.Series, measure: Measure, trained: bool) -> bool:
    """Whether differences by sample and seed say more than chance: of two samples or more, and of two trainings."""
    if differences.empty:
        return False
    samples, seeds = (differences.groupby(level=by).ngroups for by in (list(measure.samples), "seed"))
    return samples > 1 and (seeds > 1 or not trained)


def mean_on_same_samples(differences: pd.Series, measure: Measure, most: float = 1.0) -> Estimate:
    """Mean of differences by sample and seed, each between `-most` and `most`; of the intervals over seeds and samples,
    and over the samples' means, the wider one.
    """
    by_sample = differences.groupby(level=list(measure.samples)).mean()
    unequal = differences.abs().groupby(level=list(measure.samples)).max() > ROUNDING
    if unequal.sum() < SURELY_UNEQUAL:  # the mean is at most the fraction that differs
        half = most * bounded_mean(unequal.to_numpy(float)).high
        return Estimate(float(differences.mean()), -half, half)
    seeds = differences.index.get_level_values("seed").to_numpy()
    within, of_means = (
        bounded_mean((most + values.to_numpy()) / (2 * most), seeds=of)
        for values, of in ((differences, seeds), (by_sample, None))
    )
    wider = max(within, of_means, key=lambda one: one.high - one.low)
    return Estimate(*(most * (2 * limit - 1) for limit in wider))


def recurformer(points: pd.DataFrame, arm: str = "") -> pd.DataFrame:
    """RecurFormer's scores: the paper's choice of heads replaced by Mamba, and trained; or what another recipe of
    recovery, an arm, gave.
    """
    if arm:
        return of(points, "recovered", arm)
    groups_or_heads = [of(points, family, "mamba") for family in ("mixer", "single")]
    rows = next((rows for rows in groups_or_heads if len(rows)), groups_or_heads[0])
    return rows[rows["trained"].astype(bool)]


Pairs = Iterator[tuple[pd.Series, str, pd.Series, str]]
"""A score and the name of what has it, and those of what it is set beside."""


def _named(rows: pd.DataFrame) -> Iterator[tuple[pd.Series, str]]:
    """RecurFormer's scores, by the recipe where it is not the paper's."""
    for _, row in rows.iterrows():
        yield row, RECURFORMER if row["family"] != "recovered" else method_label("recovered", row["method"])


def _on_same_heads(
    points: pd.DataFrame, others: pd.DataFrame, mixer: str = ""
) -> Iterator[tuple[pd.Series, pd.Series]]:
    """A mixer, else that of the other, on the heads that RA-I chooses: at the other's setting, trained or not as it."""
    for _, other in others.iterrows():
        rows = of(points, "mixer", mixer or other["method"])
        alike = rows[(rows["setting"] == other["setting"]) & (rows["trained"] == other["trained"])]
        yield from ((row, other) for _, row in alike.iterrows())


def beside_same_cache(points: pd.DataFrame, rows: pd.DataFrame, family: str, *methods: str) -> Pairs:
    """RecurFormer beside each method of a family, or the named ones, at the cache that RecurFormer holds, the original
    being all of it.
    """
    for method, settings in groups(after_training(of(points, family, *methods)), "method"):
        span = pd.concat([settings, original(points, bool(settings["trained"].any()))])
        for row, name in _named(rows):
            if (other := at_cache(span, row["ratio"])) is not None:
                yield row, name, other, method_label(family, method)


def beside_mixers(points: pd.DataFrame, _: pd.DataFrame, *methods: str) -> Pairs:
    """Mamba beside other mixers on the same heads, all of them trained, at those settings at which the model misses the
    heads: where it does as well without them, nothing in their place can show what it is worth.
    """
    trained = points[points["trained"]]
    removed, others = of(trained, "mixer", "zero"), of(trained, "mixer", *methods)
    unmissed = removed.loc[removed["high"] >= original(points, trained=True)["mean"].max(), "setting"]
    missed = others[~others["setting"].isin(unmissed)]
    missed = missed.assign(rows=missed["rows"].map(lambda rows: (*rows, *chain(*removed["rows"]))))
    for row, other in _on_same_heads(points, missed, "mamba"):
        yield row, RECURFORMER, other, method_label("mixer", other["method"])


def beside_layers(points: pd.DataFrame, _: pd.DataFrame) -> Pairs:
    """Heads beside whole layers, replaced by the same mixer, where both hold about the same cache: a fraction of few
    layers is often not the fraction of heads that was asked for.
    """
    for row, other in _on_same_heads(points, of(points, "layers")):
        if abs(row["ratio"] - other["ratio"]) <= SAME_CACHE:
            mixer = other["method"]
            yield row, f"heads by {method_label('mixer', mixer)}", other, method_label("layers", mixer)


def beside_single(points: pd.DataFrame, _: pd.DataFrame) -> Pairs:
    """Whole query groups beside as many single heads, each choice by RA-I, whatever cache they hold."""
    for row, other in _on_same_heads(points, of(points, "single")):
        named = f"{method_label('single', other['method'])} ({other['ratio']:.2f} of the cache)"
        yield row, f"query groups ({row['ratio']:.2f})", other, named


def beside_ranking(points: pd.DataFrame, _: pd.DataFrame, by: str) -> Pairs:
    """Heads chosen by RA-I beside heads chosen by another ranking, replaced by the same mixer at equal β."""
    for row, other in _on_same_heads(points, points[(points["family"] == "mixer") & (points["by"] == by)]):
        yield row, f"RA-I's choice ({method_label('mixer', other['method'])})", other, f"{by} choice"


def beside_original(points: pd.DataFrame, rows: pd.DataFrame) -> Pairs:
    """RecurFormer beside the original, trained likewise where it was."""
    for row, name in _named(rows):
        for _, other in original(points, row["trained"]).head(1).iterrows():
            yield row, name, other, "the original"


PAIRINGS: dict[str, Callable[..., Pairs]] = {
    "same_cache": beside_same_cache,
    "mixers": beside_mixers,
    "layers": beside_layers,
    "single": beside_single,
    "ranking": beside_ranking,
    "original": beside_original,
}
"""What RecurFormer is set beside -> the pairs, from the scores of one model and RecurFormer's among them."""


def comparisons(
    measure: Measure, points: pd.DataFrame, beside: Mapping[str, Sequence[str]], common: bool = False, arm: str = ""
) -> list[Comparison]:
    """What is set beside what of one model, from its scores; see `compared`."""
    rows, score = recurformer(points, arm), list(Estimate._fields)
    rows = at_common_setting(rows) if common else rows
    found = []
    for pairing, which in beside.items():
        for row, name, other, other_name in PAIRINGS[pairing](points, rows, *which):
            if not measure.in_nats and max(row["high"], other["high"]) <= EQUAL:
                continue  # both fail
            found.append(
                Comparison(
                    measure, row["model"], other_name, row["setting"], Estimate(*row[score]), Estimate(*other[score]),
                    int(row["samples"]), (row[FALL], other[FALL]), (*row["rows"], *other["rows"]), name,
                    any(map(_is_trained, (row, other))), _shortfalls(measure, row, other),
                )
            )  # fmt: skip
    return found


def _shortfalls(measure: Measure, row: pd.Series, other: pd.Series) -> pd.Series:
    """The other's score less RecurFormer's, by sample and seed; none where samples differ, or a training is alone."""
    ours, theirs = row["by_sample"], other["by_sample"]
    random = "random" in (row["by"], other["by"])
    several = [len(one["by_sample"].index.unique("seed")) > 1 for one in (row, other)]
    alone = any(_is_trained(one) and not many for one, many in zip((row, other), several, strict=True))
    if alone or (random and all(several)):  # the seed of a random choice is no training's, and draws no samples
        return ours.iloc[:0]
    return less(theirs, ours, measure.in_nats or random)


def _is_trained(row: pd.Series) -> bool:
    """Whether chance had a part in it: in a training, or in weights drawn before a mixer's last layer was solved."""
    of_mixers = row.get("family") in ("mixer", "layers", "single")  # a point between two caches has none
    drawn = of_mixers and row["method"] not in get_args(Untrained)
    return bool(row["trained"] or drawn)


ALLOWED = {
    "equal": (EQUAL, EQUAL_NATS),
    "printed": (ALLOWED_DROP, math.log(ALLOWED_RATIO)),
    "others_fall": (-ALLOWED_DROP, -math.log(ALLOWED_RATIO)),
}
"""By how much a score may fall short, a fraction and in nats: by what counts as equal, by what the paper's tables print
of h_gq and of the perplexity, or so that the others must fall short by as much.
"""


def rows_of(pairs: Iterable[Comparison]) -> Rows:
    """The measurements that comparisons rest on."""
    rows: dict[str, list[int]] = {}
    for one in pairs:
        rows.setdefault(one.measure.kind, []).extend(one.rows)
    return rows


_SIDES = ("score", "other_score")
Test = Sequence[Comparison]
"""Comparisons whose mean is won or lost."""


def _mean(estimates: Sequence[Estimate]) -> Estimate:
    """Their mean, with an interval as wide as if all were off in the same direction."""
    return Estimate(*np.mean(estimates, axis=0).tolist())


def _shortfall(test: Test) -> Estimate:
    """How far RecurFormer's mean score is below the other's."""
    return _mean([one.shortfall for one in test])


def _listed(betas: Iterable[float]) -> str:
    return ", ".join(f"{beta:g}" for beta in sorted(set(betas)))


def _sentence(test: Test) -> str:
    first = test[0]
    betas = _listed(one.beta for one in test)
    ours, theirs = (_shown(first.measure, _mean([getattr(one, side) for one in test])) for side in _SIDES)
    text = f"{label(first.model)}, {first.measure.name} at β {betas}: {first.name} {ours}, {first.other} {theirs}"
    if any(one.paired is None for one in test):
        return text
    shortfall = _shortfall(test)
    word, unit = "worse" if shortfall.mean > 0 else "better", " nats a token" if first.measure.in_nats else ""
    mean, *ends = shortfall if shortfall.mean > 0 else (0.0 - one for one in shortfall)
    return f"{text} ({word} by {mean:.3g} [{min(ends):.3g}, {max(ends):.3g}]{unit} on the same samples)"


def _shown(measure: Measure, score: Estimate) -> str:
    mean, *ends = map(measure.shown, score)
    interval = f" [{min(ends):.3g}, {max(ends):.3g}]" if score.low < score.high else ""
    return f"{mean:.3g}{interval}"


def judge_comparisons(pairs: Sequence[Comparison], by_beta: bool = False, allowed: str = "equal") -> Finding:
    """RecurFormer scores at least what every other does, less what is allowed or counts as equal.

    A test is neither won nor lost with a comparison in which the loss of what falls short still falls.

    Args:
        pairs: the comparisons, at least one.
        by_beta: each β is a test of its own; else the mean over the β that were compared.
        allowed: by how much it may fall short, of `ALLOWED`.
    """
    tests: dict[tuple[object, ...], list[Comparison]] = {}
    for one in pairs:
        key = one.measure.kind, one.model, one.name, one.other, one.beta if by_beta else None
        tests.setdefault(key, []).append(one)
    ended = [test for test in tests.values() if not any(one.why_undecided(allowed) for one in test)]
    if ended and not (lost := _judged(ended, allowed)).holds:
        return replace(lost, rows=rows_of(pairs))
    finding = _judged(list(tests.values()), allowed)
    still_falls = dict.fromkeys(filter(None, (one.why_undecided(allowed) for one in pairs)))
    return replace(finding, still_open="; ".join(still_falls)) if still_falls else finding


def _judged(tests: Sequence[Test], allowed: str) -> Finding:
    pairs = list(chain(*tests))
    tests = sorted(tests, key=lambda test: _shortfall(test).mean)
    beyond = [_mean([one.excess(allowed) for one in test]) for test in tests]
    holds, still_open = at_most(ROUNDING, beyond)
    samples = min(one.samples for one in pairs)
    worst = {(test[0].measure.kind, test[0].model): test for test in tests}
    text = "; ".join(map(_sentence, worst.values()))
    if len(tests) > len(worst):
        won = sum(one.mean <= ROUNDING for one in beyond)
        text = f"{won} of {len(tests)} comparisons are no worse; the least favourable of each model: {text}"
    still_open = still_open if samples > 1 else "one sample has no interval"
    return Finding(holds, text, rows_of(pairs), samples, still_open)


def compare(
    evidence: Evidence, measures: Sequence[str] = ("hashhop", "needle", "continuation"), **what: Any
) -> list[Comparison]:
    """The comparisons of all models that have learned a measure's task, for all measures that there are.

    Raises:
        Missing: nothing was measured to compare with; the message has every reason.
        Undecided: no model has learned the task, likewise.
    """
    pairs: list[Comparison] = []
    reasons: list[Missing] = []
    for measure in (MEASURES[name] for name in measures):
        try:
            points = evidence.scores(measure)
        except Missing as missing:
            reasons.append(missing)
            continue
        for model, of_model in by_model(points):
            if reason := why_not_run(of_model, measure):
                reasons.append(Undecided(reason))
            elif more := comparisons(measure, of_model, **what):
                unchanged = sum(of_model.loc[of_model["family"] == "original", "rows"], ())
                pairs += [replace(one, rows=(*one.rows, *unchanged)) for one in more]
            else:
                reasons.append(Missing(f"{label(model)}, {measure.name}: nothing measured to compare with"))
    if not pairs:
        raise because(reasons)
    return pairs


def compared(
    evidence: Evidence,
    by_beta: bool = False,
    allowed: str = "equal",
    smallest: bool = False,
    plus: bool = False,
    **what: Any,
) -> Finding:
    """Each measure of RecurFormer's quality beside that of others.

    Args:
        evidence: of the ablations.
        by_beta: each β is a test of its own; else the mean over the β that were compared.
        allowed: by how much it may fall short, of `ALLOWED`.
        smallest: say too how small a cache may be.
        plus: say besides what the plus recipe gave; it is not counted, what plain training gave decides.
        what: beside (name in `PAIRINGS` -> which of it), measures (of `MEASURES`; else the first three), common
            (RecurFormer at the common β alone), arm (see `recurformer.claims.comparisons.recurformer`).
    """
    besides = ""
    if plus:
        with suppress(Missing):
            other = compared(evidence, by_beta, allowed, arm="plus", **what)
            besides = f"; not counted: {other.ours} ({other.outcome})"
    try:
        finding = judge_comparisons(compare(evidence, **what), by_beta, allowed)
    except Missing as missing:
        raise type(missing)(f"{missing}{besides}") from None
    finding = _with_smallest(evidence, finding) if smallest else finding
    return replace(finding, ours=f"{finding.ours}{besides}")


def mixers(evidence: Evidence, others: Sequence[str]) -> Finding:
    """Mamba beside other mixers on the same heads, all of them trained, at equal β. Each of them must have been, unless
    Mamba loses to one that was.
    """
    pairs: list[Comparison] = []
    unmeasured: list[Missing] = []
    for other in others:
        try:
            pairs += compare(evidence, beside={"mixers": [other]})
        except Missing as missing:
            where = "on the same heads, at a β at which the model misses them"
            unmeasured.append(type(missing)(f"{method_label('mixer', other)} {where}: {missing}"))
    finding = judge_comparisons(pairs) if pairs else None
    if finding is None or (unmeasured and finding.holds):
        raise unmeasured[0]
    return _with_smallest(evidence, finding)


def _smallest_caches(points: pd.DataFrame) -> str:
    """The smallest cache at which RecurFormer, and what needs no more, is as near to the original as is allowed."""
    smallest: dict[str, float] = {}
    changed = as_paper_does(points)
    for (family, method), rows in groups(changed[changed["family"] != "original"], ["family", "method"]):
        unchanged = original(points, bool(rows["trained"].any()))["mean"].max()
        kept = rows[(rows["mean"] >= unchanged - ALLOWED_DROP) & (rows["ratio"] < 1)]
        if len(kept):
            smallest[method_label(family, method)] = float(kept["ratio"].min())
    recurformers = smallest.get(method_label("mixer", "mamba"), 1.0)
    shown = sorted((ratio, name) for name, ratio in smallest.items() if ratio <= recurformers)
    return ", ".join([*(f"{ratio:.2f} ({name})" for ratio, name in shown), "all others need more"] if shown else [])


def _with_smallest(evidence: Evidence, finding: Finding) -> Finding:
    """The same, with the smallest caches of all models that have learned HashHop."""
    try:
        points = evidence.scores(HASHHOP)
    except Missing:
        return finding
    learned = {model: of_model for model, of_model in by_model(points) if not why_not_run(of_model, HASHHOP)}
    chosen = points["by"].isin([PAPERS_SELECTOR, ""]) & points["family"].isin(METHODS)
    shown = points[chosen & points["model"].isin(learned)]
    texts = [
        f"{label(model)}, at β {_listed(of_model.loc[of_model['family'] == 'mixer', 'setting'])}, stays within "
        f"{ALLOWED_DROP:g} of the original's h_gq down to a cache of {caches}"
        for model, of_model in learned.items()
        if (caches := _smallest_caches(of_model))
    ]
    rows = {**finding.rows, HASHHOP.kind: [*finding.rows.get(HASHHOP.kind, ()), *sum(shown["rows"], ())]}
    return replace(finding, ours="; ".join([finding.ours, *texts]), rows=rows)
