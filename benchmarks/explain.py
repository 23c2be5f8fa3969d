"""Why a goal is missed: where the candidate and its baseline spend their time, operator by operator.

Operators are torch's and the package's own kernels, each without what it calls; on CUDA they are the device's kernels.
Python and the library's modules between them are what the run takes besides. Every time is the measured median, divided
in the shares that a profile of a few runs shows: watching makes small operators slower than they are.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.case import Call, Options, Work
from benchmarks.clock import timed
from benchmarks.goals import Judged
from benchmarks.topics import find
from recurformer.model import native

RUNS = 3
SHOWN = 8
BETWEEN = "between operators"
"""The name of what is no operator."""
COLUMNS = ("topic", "case", "threads", "candidate", "operator", "seconds")


@contextmanager
def named_kernels() -> Iterator[None]:
    """Let the profiler see the kernels that are called without a torch operator around them."""
    call = native.call

    def named(function: str, *arguments: Any) -> int:
        with record_function(function):
            return call(function, *arguments)

    native.call = named
    try:
        yield
    finally:
        native.call = call


def shares(call: Call, device: str) -> dict[str, float]:
    """Share of each operator in a warm run; they sum to 1 with that of `BETWEEN`."""
    activities = [ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU]
    elapsed, found = 0.0, dict[str, float]()
    for run in range(1 + RUNS):
        call.before()
        with named_kernels(), profile(activities=activities) as watched:
            seconds = timed(call, device)
        call.after()
        if not run:  # to warm up
            continue
        elapsed += seconds
        for event in watched.key_averages():
            own = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
            found[event.key] = found.get(event.key, 0.0) + 1e-6 * own
    whole = max(elapsed, sum(found.values()))  # kernels of two streams may run at once
    return {name: seconds / whole for name, seconds in found.items() if seconds} | {
        BETWEEN: 1 - sum(found.values()) / whole
    }


def _slow(judged: Sequence[Judged], rows: pd.DataFrame) -> Iterator[pd.Series]:
    """The measurements that missed a goal for their time, each once; not those that would first search for a batch."""
    missed = [found for found in judged if found.verdict == "missed" and found.goal.quantity in ("speed", "time")]
    missed = [found for found in missed if found.goal.topic != "throughput"]  # decoding says the same
    places = {place for found in missed for place in found.places}
    for _, row in rows[rows.index.isin(places)].iterrows():
        yield row


def _spent(row: pd.Series, name: str, call: Call, rows: pd.DataFrame, options: Options) -> Iterator[dict[str, Any]]:
    median = rows[(rows.case == row.case) & (rows.candidate == name)].median_seconds.iloc[0]
    for operator, share in shares(call, options.device).items():
        yield {**row[["topic", "case", "threads"]], "candidate": name, "operator": operator, "seconds": share * median}


def _heading(row: pd.Series, works: Sequence[Work]) -> str:
    def beside(kind: str, scale: float) -> str:
        own, other = (getattr(work, kind) / scale for work in works)
        return f"{own:.3g} (baseline {other:.3g})"

    counted = (beside("flops", 1e9), beside("bytes", 1e6), beside("exponentials", 1e6))
    return (
        f"### Where the time goes: {row.topic}, {row.case}, {row.candidate} beside {row.baseline}\n\n"
        "Counted: {} G operations, {} MB, {} M exponentials\n".format(*counted)
    )


def _table(spent: pd.DataFrame, candidate: str, baseline: str) -> str:
    """The operators in which both differ most, and all others in one line."""
    wide = 1e3 * spent.pivot_table(index="operator", columns="candidate", values="seconds", fill_value=0.0)
    wide = wide[[baseline, candidate]].assign(difference=wide[candidate] - wide[baseline])
    wide = wide.sort_values("difference", key=abs, ascending=False)
    lines = pd.concat([wide[:SHOWN], wide[SHOWN:].sum().to_frame("all others").T, wide.sum().to_frame("sum").T])
    return lines.rename_axis("own ms of").to_markdown(floatfmt=".3g")


def explain(judged: Sequence[Judged], rows: pd.DataFrame, options: Options) -> Iterator[tuple[str, pd.DataFrame]]:
    """For each measurement that missed a goal for its time: a text to print, and rows of `COLUMNS`.

    Args:
        judged: the goals of one topic.
        rows: the topic's measurements, indexed as `judged` knows them.
        options: of the run.
    """
    for row in _slow(judged, rows):
        calls = {name: find(options, row.topic, row.case, name).prepare() for name in (row.candidate, row.baseline)}
        spent = pd.DataFrame(
            [one for name, call in calls.items() for one in _spent(row, name, call, rows, options)], columns=COLUMNS
        )
        heading = _heading(row, [call.work for call in calls.values()])
        yield f"{heading}\n{_table(spent, row.candidate, row.baseline)}\n", spent
