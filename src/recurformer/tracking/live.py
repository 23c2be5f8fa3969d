"""The rows of a running training, sent to the trackers that RECURFORMER_TRACKERS names. None of them can stop it.

Each tracker works in a thread of its own: the training only puts rows into a queue. The first failure of a tracker, of
whatever kind, is one line on standard error; from then on it gets nothing more.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread

from recurformer.tracking import SINKS, require_sink
from recurformer.tracking.run import Row, Run, Sink

VARIABLE = "RECURFORMER_TRACKERS"
PAUSE = 5.0
"""Least seconds between two writes of a tracker."""
PATIENCE = 30.0
"""Most seconds that a training which has ended waits for a tracker to write what is left."""


def chosen_trackers() -> list[str]:
    """The names in RECURFORMER_TRACKERS, separated by spaces or commas, each once.

    Raises:
        ValueError: there is no tracker of such a name.
    """
    names = os.environ.get(VARIABLE, "").replace(",", " ").split()
    try:
        return [require_sink(name) for name in dict.fromkeys(names)]
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None


@contextmanager
def tracked(args: Namespace, checkpoints: Path) -> Iterator[Callable[[dict[str, float]], None] | None]:
    """A callback for the rows of the training that runs inside the block; None when no tracker is chosen.

    Args:
        args: of a stage that trains.
        checkpoints: folder from which the training resumes when it was killed. Its name stands for the attempt, and its
            metrics.jsonl holds the rows of which the kill may have kept some from the trackers: they are sent again.

    Raises:
        ValueError: RECURFORMER_TRACKERS names a tracker that there is not.
    """
    names = chosen_trackers()
    if not names:
        yield None
        return
    run = Run.of(args.stage, vars(args), args.metrics, attempt=checkpoints.name)
    channels = [_Channel(name, run) for name in names]
    complete = resumed = False

    def send(row: dict[str, float]) -> None:
        nonlocal resumed
        rows = [row] if resumed else [*_rows_before(row["step"], checkpoints / "metrics.jsonl"), row]
        resumed = True
        now = datetime.now(UTC)
        for sent in rows:
            for channel in channels:
                channel.rows.put(Row.of(sent, now + timedelta(seconds=sent["seconds"] - row["seconds"])))

    try:
        yield send
        complete = True
    finally:
        for channel in channels:
            channel.close(complete)


def _rows_before(step: float, log: Path) -> list[dict[str, float]]:
    rows = map(json.loads, log.read_text().splitlines() if log.is_file() else [])
    return [row for row in rows if row["step"] < step]


class _Channel:
    """A tracker and the thread that serves it."""

    def __init__(self, name: str, run: Run) -> None:
        self.name = name
        self.rows: SimpleQueue[Row] = SimpleQueue()
        self.closing = Event()
        self.complete = self.gave_up = False
        self.thread: Thread | None = None
        try:
            # Here, not in the thread: two threads that import at once can meet half-imported modules.
            sink = SINKS[name]()
        except Exception as error:
            self._give_up(error)
            return
        self.thread = Thread(target=self._serve, args=(sink, run), daemon=True)
        self.thread.start()

    def close(self, complete: bool) -> None:
        """Have everything written that was sent, within PATIENCE."""
        if self.thread is None:
            return
        self.complete = complete
        self.closing.set()
        self.thread.join(PATIENCE)
        if self.thread.is_alive():
            self._give_up(TimeoutError(f"not done after {PATIENCE:.0f} s"))

    def _serve(self, sink: Sink, run: Run) -> None:
        try:
            sink.open(run)
            closed = False
            while not closed:
                closed = self.closing.wait(PAUSE)  # nothing is sent any more after that
                if rows := [self.rows.get() for _ in range(self.rows.qsize())]:
                    sink.log(rows)
            sink.finish(self.complete)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self.gave_up:
            return
        self.gave_up = True
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        print(
            f"tracker {self.name} gave up, the training does not: {reason}; `recurformer track` imports it later",
            file=sys.stderr,
            flush=True,
        )
