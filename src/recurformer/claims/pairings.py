"""What is set beside what: RecurFormer and others, at the same setting or at the same cache."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd

from recurformer.data.interval import Estimate
from recurformer.paper import label
from recurformer.render.ablations import Measure, after_training, at_cache, method_label, of, original
from recurformer.render.measurements import groups
from recurformer.render.training import FALL, why_undecided
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
