"""A running training, shown by the trackers that RECURFORMER_TRACKERS names. None of them can stop it.

Each tracker has a thread of its own, which reads the log that the training writes. The first failure of a tracker, of
whatever kind, is one line on standard error; from then on it gets nothing more.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
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
def tracked(args: Namespace, checkpoints: Path) -> Iterator[None]:
    """Show the training that runs inside the block to the chosen trackers.

    Args:
        args: of a stage that trains.
        checkpoints: folder from which the training resumes when it was killed. Its name stands for the attempt, and its
            metrics.jsonl is what the trackers show; rows of which a kill has kept some from them are sent again.

    Raises:
        ValueError: RECURFORMER_TRACKERS names a tracker that there is not.
    """
    names, complete = chosen_trackers(), False
    log = checkpoints / "metrics.jsonl"
    followers = [_Follower(name, Run.of(args.stage, vars(args), args.metrics, checkpoints.name), log) for name in names]
    try:
        yield
        complete = True
    finally:
        for follower in followers:
            follower.close(complete)


def _rows_after(step: int, log: Path) -> list[Row]:
    """The later rows of a log. The newest is as old as the file."""
    lines = log.read_text().split("\n")[:-1] if log.is_file() else []  # the last line may not be whole yet
    rows = [json.loads(line) for line in lines]
    if not rows or rows[-1]["step"] <= step:
        return []
    began = datetime.fromtimestamp(log.stat().st_mtime, UTC) - timedelta(seconds=rows[-1]["seconds"])
    return [Row.of(row, began + timedelta(seconds=row["seconds"])) for row in rows if row["step"] > step]


class _Follower:
    """A tracker and the thread that serves it."""

    def __init__(self, name: str, run: Run, log: Path) -> None:
        self.name, self.log, self.closing = name, log, Event()
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
        """Have everything written that is in the log, within PATIENCE."""
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
            step, closed = 0, False
            while not closed:
                closed = self.closing.wait(PAUSE)  # the log is whole then
                if rows := _rows_after(step, self.log):
                    sink.log(rows)
                    step = rows[-1].step
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
