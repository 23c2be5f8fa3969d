"""Experiment tracking: training curves in a browser, live or later. It computes nothing, and no table reads its files.

A sink is one tracker. `live` sends the rows of a running training to the sinks that RECURFORMER_TRACKERS names;
`recurformer track` sends those of a finished one. Nothing here asks for an account or uses the network.
"""

from recurformer.tracking.mlflow import MLflowSink
from recurformer.tracking.run import Row, Run, Sink
from recurformer.tracking.trackio import TrackioSink

__all__ = ["SINKS", "Row", "Run", "Sink", "require_sink"]

SINKS: dict[str, type[Sink]] = {"trackio": TrackioSink, "mlflow": MLflowSink}
"""Name of a tracker -> its sink. Making one imports the tracker, and raises ImportError where it is not installed."""


def require_sink(name: str) -> str:
    """Return `name` when there is such a tracker.

    Raises:
        ValueError: there is none; names those that there are.
    """
    if name not in SINKS:
        raise ValueError(f"there is no tracker {name!r}; there are: {', '.join(SINKS)}")
    return name
