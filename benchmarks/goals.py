"""The goals, as data, and what a run says about each of them.

`speed` is the ratio of the measurements: the baseline's time over the candidate's. `time` is its inverse.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import pandas as pd

from benchmarks.case import Options

CONTEXTS = (256, 1024, 4096, 8192)
SCAN = "1x1024x1152x16 float32"


@dataclass(frozen=True)
class Goal:
    """One number to reach. Where several cases match, their median counts.

    Attributes:
        topic: name of a topic.
        case: name of a case, or a pattern of names with `*`.
        candidate: what is to reach it.
        baseline: what it is measured against.
        quantity: "speed" and "time" are ratios, "peak_bytes" bytes, "error" a share of the largest value.
        comparison: ">=" or "<=".
        value: to reach.
        device: "cpu" or "cuda".
        threads: processor threads for which it is set, None for any number.
    """

    topic: str
    case: str
    candidate: str
    baseline: str
    quantity: Literal["speed", "time", "peak_bytes", "error"]
    comparison: Literal[">=", "<="]
    value: float
    device: str = "cpu"
    threads: int | None = None

    def met(self, measured: float) -> bool:
        """Whether a measured quantity reaches the goal."""
        return measured >= self.value if self.comparison == ">=" else measured <= self.value

    def __str__(self) -> str:
        sign = {">=": "≥", "<=": "≤"}[self.comparison]
        shown = {
            "speed": f"{sign} {self.value:g}x {self.baseline}",
            "time": f"{sign} {self.value:g} of the time of {self.baseline}",
            "peak_bytes": f"{sign} {self.value / 1e6:g} MB",
            "error": f"error {sign} {self.value:g}",
        }
        return shown[self.quantity]


@dataclass(frozen=True)
class Judged:
    """What a run says about a goal.

    Attributes:
        goal: the goal.
        threads: processor threads of the measurements.
        measured: the quantity, NaN when it was not measured.
        missing: why it was not; empty when it was.
        places: index of the measurements that decided.
    """

    goal: Goal
    threads: int
    measured: float
    missing: str
    places: tuple[Hashable, ...]

    @property
    def verdict(self) -> str:
        """Met, missed, or not run here with the reason."""
        return f"not run here: {self.missing}" if self.missing else "met" if self.goal.met(self.measured) else "missed"


def _models(topic: str, tokens: Iterable[int], betas: Iterable[float], value: float, device: str = "cpu") -> list[Goal]:
    return [
        Goal(topic, f"{length} tokens", f"beta {beta:g}", "backbone", "speed", ">=", value, device)
        for length in tokens
        for beta in betas
    ]


def _priced(
    topic: str, values: Iterable[float], case: str = "", kind: str = "", baseline: str = "backbone"
) -> list[Goal]:
    return [
        Goal(topic, f"{length} tokens{case}", f"cache 1/8{kind}", baseline, "speed", ">=", value)
        for length, value in zip(CONTEXTS, values, strict=True)
    ]


# Set when the fast paths were asked for.
GOALS: tuple[Goal, ...] = (
    Goal("scan", f"{SCAN} forward", "recurformer", "transformers", "speed", ">=", 25, threads=2),
    Goal("scan", f"{SCAN} forward", "recurformer", "transformers", "error", "<=", 1e-6),
    Goal("scan", f"{SCAN} forward+backward", "recurformer", "mambapy", "speed", ">=", 30, threads=2),
    Goal("scan", f"{SCAN} forward+backward", "recurformer", "mambapy", "peak_bytes", "<=", 25e6, threads=2),
    Goal("scan", "* forward", "recurformer triton", "recurformer mamba_ssm", "speed", ">=", 1.0, "cuda"),
    Goal("scan", "* backward", "recurformer triton", "recurformer mamba_ssm", "speed", ">=", 0.7, "cuda"),
    *_models("prefill", CONTEXTS, (0.5,), 1.0),
    *_models("prefill", CONTEXTS[:-1], (0.9,), 1.0),
    *_models("prefill", CONTEXTS[-1:], (0.9,), 1.3),
    *_models("decode", CONTEXTS, (0.5,), 1.0),
    *_models("decode", CONTEXTS[:-1], (0.9,), 1.0),
    *_models("decode", CONTEXTS[-1:], (0.9,), 1.3),
    *_priced("decode", (1.0, 1.05, 1.4, 2.0)),
    *_priced("prefill", (0.98, 1.0, 1.3, 1.6)),
    *_priced("decode", (1.7, 2.0, 3.0, 4.0), ", quickest", ", bfloat16", "stock"),
    *_models("throughput", (32768,), (0.9,), 3.0, "cuda"),
    *(Goal("training", f"{length} tokens", "beta 0.5", "backbone", "time", "<=", 1.15) for length in (128, 1024)),
    Goal("profiling", "1024 tokens", "profile_heads", "forward", "time", "<=", 1.15),
    Goal("profiling", "prices of 4096 tokens", "price", "forward", "peak_bytes", "<=", 1e9),
)

QUANTITIES: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "speed": lambda rows: rows.ratio,
    "time": lambda rows: 1 / rows.ratio,
    "peak_bytes": lambda rows: rows.peak_bytes,
    "error": lambda rows: rows.error,
}


def _rows_of(goal: Goal, rows: pd.DataFrame, options: Options) -> tuple[pd.DataFrame, str]:
    """The measurements that decide a goal, or none and the reason."""
    if goal.device != options.device:
        return rows[:0], "needs a GPU" if goal.device == "cuda" else "set for a processor"
    if goal.threads not in (None, options.threads):
        return rows[:0], f"set for {goal.threads} threads"
    here = rows[[fnmatchcase(name, goal.case) for name in rows.case]]
    if here.empty:
        return here, f"no case {goal.case!r} in this run"
    for name in (goal.candidate, goal.baseline):
        if name not in set(here.candidate):
            return here[:0], f"{name} is not there"
    found = here[(here.candidate == goal.candidate) & (here.baseline == goal.baseline)]
    return found, "" if len(found) else f"measured against {here.baseline.iloc[0]}"


def judge(rows: pd.DataFrame, topic: str, options: Options, goals: Sequence[Goal] = GOALS) -> list[Judged]:
    """What the measurements of one topic under these options say about its goals."""
    judged = []
    for goal in goals:
        if goal.topic == topic:
            found, reason = _rows_of(goal, rows, options)
            measured = float(QUANTITIES[goal.quantity](found).median())
            judged.append(Judged(goal, options.threads, measured, reason, tuple(found.index)))
    return judged


def with_goals(rows: pd.DataFrame, judged: Sequence[Judged]) -> pd.DataFrame:
    """The measurements with the columns `goal` and `met`: the goals that a row decided and their verdicts, by `;`."""
    decided = {place: [found for found in judged if place in found.places] for place in rows.index}
    return rows.assign(
        goal=["; ".join(str(found.goal) for found in decided[place]) for place in rows.index],
        met=["; ".join(found.verdict for found in decided[place]) for place in rows.index],
    )
