"""From cases to measurements: one tidy row for each candidate."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.case import Call, Case, Options
from benchmarks.clock import take_turns
from benchmarks.memory import peak_bytes
from benchmarks.parts import PARTS, parts

COLUMNS = (
    "topic", "case", "candidate", "baseline", "backend", "model", "beta", "heads", "batch", "tokens", "channels",
    "states", "device", "threads", "rounds", "median_seconds", "ratio", "ratio_low", "ratio_high",
    "peak_bytes", "error", *PARTS, "between",
)  # fmt: skip
"""`ratio` is the median over the rounds of the baseline's seconds over the candidate's, `ratio_low` and `ratio_high`
their 10th and 90th percentile; `error` is the largest deviation as a share of the largest expected value."""
SPREAD = (10, 50, 90)


def device_kind(device: str) -> str:
    """What ratios may be compared within: "cpu", or the name of the GPU."""
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def _ratio(baseline: list[float] | None, seconds: list[float]) -> dict[str, float]:
    low, middle, high = (
        (math.nan,) * 3 if baseline is None else np.percentile(np.divide(baseline, seconds), SPREAD).tolist()
    )
    return {"ratio": middle, "ratio_low": low, "ratio_high": high}


def _error(call: Call, expected: Tensor) -> float:
    call.before()
    found = call.run().detach().double().cpu()
    call.after()
    return float((found - expected).abs().max() / expected.abs().max())


def measure(topic: str, case: Case, options: Options, rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Time the candidates of a case and measure their memory.

    Args:
        topic: to which the case belongs.
        case: what to compare.
        options: of the run.
        rounds: how often each candidate is timed, at most.
        seconds: after which no further round starts (see `clock.take_turns`).

    Yields:
        A row with the columns `COLUMNS`, as far as they are known, for each candidate.
    """
    calls = {candidate.name: candidate.prepare() for candidate in case.candidates}
    taken = take_turns(calls, rounds, seconds, options.device)
    expected = None if case.expected is None else case.expected().cpu()
    for candidate in case.candidates:
        call, samples = calls[candidate.name], taken[candidate.name]
        yield {
            **case.facts,
            **candidate.facts,
            "topic": topic,
            "case": case.name,
            "candidate": candidate.name,
            "baseline": case.baseline,
            "device": device_kind(options.device),
            "threads": options.threads,
            "rounds": len(samples),
            "median_seconds": float(np.median(samples)),
            **_ratio(taken.get(case.baseline), samples),
            "peak_bytes": peak_bytes(options, topic, case.name, candidate.name, call) if case.memory else math.nan,
            "error": math.nan if expected is None else _error(call, expected),
            **(parts(call) if options.device == "cpu" else {}),
        }
