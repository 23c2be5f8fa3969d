"""What a claim is: a printed statement, a test on measurements that can fail, and what the test found."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recurformer.render.claims.evidence import Evidence


class Missing(Exception):
    """A source of evidence does not decide a claim; the message says why."""


class Undecided(Missing):
    """A source of evidence has measured a claim, but not well enough to decide it; the message says why."""


@dataclass(frozen=True)
class Finding:
    """What one source of evidence says about a claim.

    Attributes:
        holds: whether the test holds.
        ours: the measured value as text.
        at_scale: whether the models are those that the claim is about; the ledger also looks at the sizes of the runs.
        samples: over which a mean was taken, None where there is no mean.
        reason: one sentence where `ours` needs one.
        by_definition: whether it could not have been otherwise.
        decided: whether other samples would have said the same: the difference is beyond the intervals.
    """

    holds: bool
    ours: str
    at_scale: bool
    samples: int | None = None
    reason: str = ""
    by_definition: bool = False
    decided: bool = True


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One checkable statement of the paper.

    Attributes:
        id: of the printed cell, number or statement.
        place: where the paper says it.
        statement: its words, or the printed number.
        kind: one of `recurformer.paper.entries.KINDS`.
        test: the condition, one sentence.
        tolerance: what may differ, and why.
        needs: what it takes to decide it at the paper's scale.
        printed: the number that is claimed, empty for a sentence.
        judge: the test; raises `Missing` where the evidence has nothing to say. None: no stage measures it.
    """

    id: str
    place: str
    statement: str
    kind: str
    test: str
    tolerance: str
    needs: str
    printed: str = ""
    judge: "Callable[[Evidence], Finding] | None" = None
