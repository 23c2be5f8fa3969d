"""What a smaller cache costs: the scores that a frontier shows, of every method and each size of its cache."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from recurformer.data.interval import Estimate, bounded_mean
from recurformer.results.frames import by_model, groups, require
from recurformer.results.scores import (
    AGREEMENT,
    DIVERGENCE,
    METHODS,
    NEEDLE,
    Measure,
    as_paper_does,
    scores,
    why_not_run,
)
from recurformer.study.method import MIXER_PRICE


def by_document(turns: pd.DataFrame) -> pd.Series:
    """Fraction of its questions that are answered, by seed and document; a document tells the same at every length."""
    return turns.groupby(["seed", "document"])["correct"].mean()


def _answered(turns: pd.DataFrame) -> Estimate:
    """Mean fraction of answered questions; 95 % interval over seeds and documents, whose questions share a cache."""
    fractions = by_document(turns)
    return bounded_mean(fractions.to_numpy(), seeds=fractions.index.get_level_values("seed").to_numpy())


TURNS = Measure("turns", "later questions", "fraction answered", _answered, lambda rows: rows[~rows["known"]],
    float, lambda _: 0.0, ("length", "document"), ("correct", "queries"))  # fmt: skip
"""Questions after reading. Any original will do: it stands beside the others, on the same questions."""


def _known(turns: pd.DataFrame) -> pd.DataFrame:
    """Questions within the prompt, one a document; and the same ones of the original, which drops nothing and so was
    asked after reading.
    """
    question = ["length", "document", "depth"]
    asked = pd.MultiIndex.from_frame(turns.loc[turns["known"], question])
    same = pd.MultiIndex.from_frame(turns[question]).isin(asked)
    return turns[turns["known"] | ((turns["family"] == "original") & same)]


KNOWN = replace(TURNS, name="known questions", chosen=_known)
SEEN_BY_SNAPKV = "A question that ends the prompt, of a needle or with a document, SnapKV sees before it drops tokens."


class Shown(NamedTuple):
    """One model's scores of one measure, and the rows that they rest on; `reason` where nothing can be said.

    Attributes:
        points: rows of `recurformer.results.scores.scores`, under the names that they have in print.
    """

    measure: Measure
    model: str
    points: pd.DataFrame
    reason: str
    rows: pd.DataFrame


def frontier_scores(
    continuation: pd.DataFrame,
    needle: pd.DataFrame | None = None,
    turns: pd.DataFrame | None = None,
    written: pd.DataFrame | None = None,
) -> Iterator[Shown]:
    """Divergence from the original after a prompt, agreement with what it writes there, needles found at each length,
    and questions answered about documents that were read before, or with the document. An original that does not find
    or answer all stands beside the others.

    Raises:
        ValueError: neither divergence nor agreement was measured.
    """
    beside_original = [
        Shown(measure, model, _with_other_heads(points), "", rows)
        for measure, rows in ((DIVERGENCE, continuation), (AGREEMENT, written))
        if rows is not None
        for model, points in by_model(scores(rows, measure))
    ]
    if not beside_original:
        raise ValueError("no continuation measurements with a divergence")
    yield from beside_original
    asked = [
        (NEEDLE, needle, "needles at {:,} tokens"),
        (TURNS, turns, "asked after {:,} tokens"),
        (KNOWN, turns, "asked with {:,} tokens"),
    ]
    for measure, frame, name in asked:
        for length, rows in [] if frame is None else groups(require(frame, measure.kind), "length", sort=True):
            at_length = replace(measure, name=name.format(length), needed=lambda _: 0.0)
            for model, points in by_model(scores(rows, at_length)):
                yield Shown(at_length, model, _with_other_heads(points), why_not_run(points, at_length), rows)


def _with_other_heads(points: pd.DataFrame) -> pd.DataFrame:
    """And mixers in the heads where they cost least, beside what else is bought by price; windows in the heads that
    other methods' scores choose; and Mamba blocks without any training under a name of their own.
    """
    windows = points[(points["method"] == "window") & points["by"].isin(METHODS["chosen"])]
    chosen = windows.assign(family="chosen", method=windows["by"])
    priced = points[points["by"] == MIXER_PRICE].assign(family="priced")
    shown = pd.concat([as_paper_does(points), priced, chosen])
    solved = (shown["family"] == "mixer") & (shown["method"] == "mamba") & ~shown["trained"].astype(bool)
    named = {"family": "recovered", "method": "calibrated"}
    return shown.assign(**{column: shown[column].mask(solved, name) for column, name in named.items()})
