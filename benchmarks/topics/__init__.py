"""The topics: name -> function of the options that yields its cases. A new topic is one file and one line here."""

from collections.abc import Callable, Iterable

from benchmarks.case import Candidate, Case, Options
from benchmarks.topics import block, decode, layer, prefill, prefix, profiling, scan, stages, throughput, training

TOPICS: dict[str, Callable[[Options], Iterable[Case]]] = {
    "scan": scan.cases,
    "block": block.cases,
    "layer": layer.cases,
    "prefill": prefill.cases,
    "decode": decode.cases,
    "prefix": prefix.cases,
    "throughput": throughput.cases,
    "training": training.cases,
    "profiling": profiling.cases,
    "stages": stages.cases,
}


def find(options: Options, topic: str, case: str, candidate: str) -> Candidate:
    """One candidate by its names."""
    found = next(other for other in TOPICS[topic](options) if other.name == case)
    return next(other for other in found.candidates if other.name == candidate)
