"""The words of the benchmarks: a topic yields cases, a case compares candidates, a candidate prepares a call.

They do not know what is measured, nor how.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Options:
    """What one run of the benchmarks was asked for.

    Attributes:
        device: "cpu" or "cuda".
        threads: processor threads that torch uses.
        quick: only the smallest sizes.
        backbone: folder of a checkpoint, or the name of a published shape, which then gets random weights.
        profile: head profile of the backbone (Parquet), or None: heads are chosen at random.
    """

    device: str
    threads: int = field(compare=False)  # so that what is kept for some options is found again at any number
    quick: bool
    backbone: str
    profile: str | None

    @property
    def dtype(self) -> torch.dtype:
        """The precision that models are used in on this device."""
        return torch.bfloat16 if self.device == "cuda" else torch.float32


def nothing() -> None:
    """Neither prepare nor clean up."""


@dataclass(frozen=True)
class Call:
    """What is timed, ready to run.

    Attributes:
        run: the timed part; what it returns is compared with the case's `expected`, if that is given.
        before: called before each run, outside the clock; a call that has one is never repeated within a sample.
        after: called after each run, outside the clock.
        units: how many units (decoded tokens) a run makes; times are per unit.
    """

    run: Callable[[], Any]
    before: Callable[[], object] = nothing
    after: Callable[[], object] = nothing
    units: int = 1


@dataclass(frozen=True)
class Candidate:
    """One way of doing the job of a case.

    Attributes:
        name: unique within the case.
        prepare: builds all that is needed, outside the clock.
        facts: values of columns of the measurements, such as beta or backend.
    """

    name: str
    prepare: Callable[[], Call]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """Candidates for one job, timed in turn.

    Attributes:
        name: unique within the topic.
        baseline: the candidate whose time is divided by the others'; ratios are missing where it is not among them.
        candidates: those that can run here.
        facts: values of columns of the measurements, such as tokens.
        expected: what every run should return, in float64; None: runs are not compared.
        memory: whether the peak memory of a run means anything.
    """

    name: str
    baseline: str
    candidates: tuple[Candidate, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    expected: Callable[[], Tensor] | None = None
    memory: bool = True
