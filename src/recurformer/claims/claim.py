"""What a claim is, what a test finds about it, and the entries of the YAML files from which the claims are made."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd

from recurformer.claims.evidence import Evidence, Rows, Undecided
from recurformer.data.interval import Estimate, mean_interval
from recurformer.files import read_yaml
from recurformer.paper import BACKBONE_LABELS, CELLS
from recurformer.paper import TABLE2_BETAS as BETAS


@dataclass(frozen=True)
class Finding:
    """What one source of evidence says about a claim.

    Attributes:
        holds: whether the test holds.
        ours: the measured value as text.
        rows: the measurements that it rests on; their models, windows and sizes say whether it is at the paper's scale.
        samples: over which a mean was taken, None where there is no mean.
        still_open: why other samples or more training might have said otherwise; empty where the test decides.
        remark: one sentence where `ours` needs one.
        by_definition: whether it could not have been otherwise.
        tokens: of training behind it, where that is what it is about: of several sources the longest training decides.
    """

    holds: bool
    ours: str
    rows: Rows
    samples: int | None = None
    still_open: str = ""
    remark: str = ""
    by_definition: bool = False
    tokens: int = 0

    @property
    def decided(self) -> bool:
        """Whether the difference is beyond the intervals, and the trainings are at their end."""
        return not self.still_open

    @property
    def outcome(self) -> str:
        """Whether it holds, in print, and whether that is open."""
        return ("holds" if self.holds else "fails") + ("" if self.decided else ", undecided")

    @property
    def reason(self) -> str:
        """What a reader must know besides."""
        return self.still_open or self.remark


OPEN = "the 95 % intervals do not decide it"


def drop(before: Estimate, after: Estimate) -> Estimate:
    """By how much a score fell: at least from the lower end of one interval to the upper end of the other."""
    return Estimate(before.mean - after.mean, before.low - after.high, before.high - after.low)


def at_most(bound: float, estimates: Iterable[Estimate], beyond: float = 0.0) -> tuple[bool, str]:
    """Whether all estimates are at most a bound, and why that is open: an interval reaches over the bound, by more than
    is allowed `beyond` it.
    """
    known = list(estimates)
    holds = all(one.mean <= bound for one in known)
    decided = all(one.high <= bound + beyond for one in known) if holds else any(one.low > bound for one in known)
    return holds, "" if decided else OPEN


def mean_difference(differences: pd.Series) -> Estimate:
    """Mean of differences by `seed` and by window or sample; with several seeds the wider of the intervals over samples
    and over seeds.

    Raises:
        Undecided: there are none: no seed was measured of both.
    """
    known = differences.dropna()
    if known.empty:
        raise Undecided("no seed was measured of both sides on the same samples")
    sample = [name for name in known.index.names if name != "seed"]
    by_sample, by_seed = (mean_interval(known.groupby(level=level).mean().to_numpy()) for level in (sample, "seed"))
    return max(by_sample, by_seed, key=lambda one: one.high - one.low)


Judge = Callable[[Evidence], Finding]
"""A test; raises `Missing` where the evidence has nothing to say."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One checkable statement: its words or the `printed` number; `claims.yaml` explains the rest.

    Without a judge no stage measures it. It is about all of its `models`.
    """

    id: str
    place: str
    statement: str
    kind: str
    test: str
    tolerance: str
    needs: str
    printed: str = ""
    judge: Judge | None = None
    models: tuple[str, ...] = tuple(BACKBONE_LABELS)
    only_at_paper_sizes: bool = False


@dataclass(frozen=True, kw_only=True)
class Entry:
    """How something is decided; `claims.yaml` explains its keys."""

    judge: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    test: str = "–"
    tolerance: str = "–"
    needs: str = ""
    only_at_paper_sizes: bool = False


@dataclass(frozen=True, kw_only=True)
class Statement(Entry):
    """One checkable sentence of the paper."""

    place: str
    kind: str
    quote: str


@dataclass(frozen=True, kw_only=True)
class Question(Entry):
    """One question of the reviewers, or that the paper leaves open."""

    question: str
    asked_by: str = "–"
    figure: str = ""
    unanswered: str = ""
    claim: str = ""

    @property
    def place(self) -> str:
        """Where it was asked, as a reader would say it."""
        if not self.asked_by[0].isdigit():
            return "Reviews, left open by the paper"
        return f"Reviews, reviewer{'s' if ',' in self.asked_by else ''} {self.asked_by.replace(', ', ' and ')}"


@dataclass(frozen=True, kw_only=True)
class Inconsistency:
    """One place where the paper contradicts itself; `inconsistencies.yaml` explains its keys."""

    rule: str
    place: str
    arithmetic: Sequence[str]
    cites: Sequence[str] = ()
    claims: Sequence[str] = ()

    @property
    def reason(self) -> str:
        """Why a claim cannot stand."""
        return f"{self.rule}: {self.arithmetic[0]}"


_FOLDER = Path(__file__).parent
_READ = read_yaml(_FOLDER / "claims.yaml")
_TOLERANCE, _NEEDS = {True: "sign", False: "–"}, {"analytic": "shapes", "trained": "trainings"}


def _filled(entry: Mapping[str, Any], **usual: str) -> dict[str, Any]:
    """An entry, with what is usual where it has nothing, and with the texts that it names."""
    filled = {**usual, **entry}
    return filled | {key: _READ["texts"].get(filled[key], filled[key]) for key in usual}


QUANTITIES = {name: Entry(**_filled(entry, needs="")) for name, entry in _READ["numbers"].items()}
"""What a printed number measures -> how it is decided; "reduction": a percentage of the text."""
STATEMENTS = {
    name: Statement(**_filled(entry, tolerance=_TOLERANCE["test" in entry], needs=_NEEDS.get(entry["kind"], "weights")))
    for file in sorted((_FOLDER / "statements").glob("*.yaml"))
    for name, entry in read_yaml(file).items()
}
"""Every checkable sentence: id -> statement."""
QUESTIONS = {
    name: Question(**_filled(entry, tolerance="no_less", needs="ablations"))
    for name, entry in read_yaml(_FOLDER / "questions.yaml").items()
}
"""Every question, in the order of the table that answers them."""
INCONSISTENCIES = {name: Inconsistency(**entry) for name, entry in read_yaml(_FOLDER / "inconsistencies.yaml").items()}
"""Where the paper contradicts itself: "audit/RULE" or "audit/RULE/PLACE" -> inconsistency."""
FINDINGS: dict[str, list[str]] = _READ["findings"]
"""Every distinct fact that the paper states -> patterns of its claims; the first fact that matches a claim has it."""


def fact_of(claim: str) -> str:
    """The fact that decides a claim of the paper: the first with a pattern that matches."""
    return next(fact for fact, patterns in FINDINGS.items() if any(fnmatchcase(claim, one) for one in patterns))


_CELLS = {(cell.quantity, cell.model, cell.method): cell.value for cell in CELLS if cell.table in (2, 3)}
_PAIRS = {
    quantity: [(_CELLS[quantity, model, "Original Model"], _CELLS[quantity, model, "RecurFormer"]) for model in BETAS]
    for quantity in ("h_gq", "perplexity")
}
ROUNDING = 1e-9
"""What numbers that are equal may differ by."""
EQUAL = 0.02
"""Fractions of right answers that differ by no more count as equal: of two methods that are equal, no interval would
ever lie on one side of 0."""
EQUAL_NATS = 0.01
"""Likewise of nats a token: 1 % of the perplexity."""
ALLOWED_DROP = max(before - after for before, after in _PAIRS["h_gq"])
"""The largest loss of h_gq that Table 2 prints and the text calls matching."""
ALLOWED_RATIO = max(after / before for before, after in _PAIRS["perplexity"])
"""The largest ratio of perplexities that Table 3 prints and the text calls comparable."""
