"""Progress of a run: its current jobs and the time left. The time left comes from the estimates of the jobs, corrected
by the times of the finished ones. The module knows neither the program that runs the jobs nor their contents.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from threading import RLock

from recurformer.plan.dry_run import Job
from recurformer.plan.listing import time_words

OVERDUE = 0.1
"""Time that an overdue job is assumed to need still, as a share of its time so far."""
TRUSTED_MINUTES = 1.0
"""Weight of the estimates, in minutes, against the times of finished jobs of other rules."""


@dataclass(frozen=True)
class Task:
    """One job of a run. `minutes` are None where nothing is known; `demand` is what it holds of each resource, `after`
    names the jobs whose results it reads.
    """

    job: Job
    minutes: float | None
    demand: Mapping[str, float]
    after: tuple[Hashable, ...] = ()


class Remaining:
    """Follows a run by the events of its jobs and ignores unknown jobs. One thread may report events while another
    asks for the lines.

    Args:
        tasks: all jobs that are to run.
        capacity: how much there is of those resources that are limited.
        verb: what jobs do that were started: "running", "running or queued".
        clock: seconds.
    """

    def __init__(
        self,
        tasks: Mapping[Hashable, Task],
        capacity: Mapping[str, float],
        verb: str = "running",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tasks, self.capacity, self.verb, self.clock = tasks, capacity, verb, clock
        self.begin = clock()
        self.lock = RLock()
        self.running: dict[Hashable, float] = {}
        self.done: set[Hashable] = set()
        self.failures: set[Hashable] = set()
        self.took: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))

    def started(self, key: Hashable) -> None:
        """A job runs, perhaps once more."""
        if key in self.tasks:
            with self.lock:
                self.failures.discard(key)
                self.running[key] = self.clock()

    def failed(self, key: Hashable) -> None:
        """A job has failed; those after it cannot run until it is started again."""
        if key in self.tasks:
            with self.lock:
                self.running.pop(key, None)
                self.failures.add(key)

    def finished(self, key: Hashable) -> None:
        """A job is done; from what it took others are judged."""
        if key not in self.tasks:
            return
        with self.lock:
            self.done.add(key)
            task, start = self.tasks[key], self.running.pop(key, None)
            if start is not None and task.minutes:
                actual, expected = self.took[task.job.rule]
                self.took[task.job.rule] = (actual + (self.clock() - start) / 60, expected + task.minutes)

    def minutes_left(self) -> float:
        """The longer of two times: that of the longest chain of jobs, and that of all jobs on the scarcest resource."""
        left = {key: self._left(key) for key in self._open()}
        needed = (
            sum(minutes * self.tasks[key].demand.get(name, 0) for key, minutes in left.items()) / amount
            for name, amount in self.capacity.items()
        )

        @cache
        def chain(key: Hashable) -> float:
            return left[key] + max((chain(before) for before in self.tasks[key].after if before in left), default=0.0)

        return max([*needed, *map(chain, left)], default=0.0)

    def lines(self) -> tuple[str, str]:
        """The running jobs; and the progress, with the time left."""
        with self.lock:
            return self._lines()

    def _lines(self) -> tuple[str, str]:
        open_jobs = self._open()
        unknown = any(self.tasks[key].minutes is None for key in open_jobs)
        elapsed = (self.clock() - self.begin) / 60
        progress = f"{len(self.done)} of {len(self.tasks)} jobs done in {_words(elapsed)}"
        left = f"about {_words(self.minutes_left())}{' or more' if unknown else ''} left"
        lost = len(self.tasks) - len(self.done) - len(open_jobs)
        failures = f"; {len(self.failures)} failed, so {lost} cannot run" if self.failures else ""
        return f"{self.verb}: {self._at_work() or 'nothing'}", f"{progress}, {left}{failures}"

    def _open(self) -> list[Hashable]:
        """Jobs that run or still can."""

        @cache
        def lost(key: Hashable) -> bool:
            return key in self.failures or any(lost(before) for before in self.tasks[key].after if before in self.tasks)

        return [key for key in self.tasks if key not in self.done and not lost(key)]

    def _expected(self, key: Hashable) -> float:
        """Minutes, by the jobs of its rule that are done; where none is, by all."""
        task = self.tasks[key]
        actual, expected = self.took.get(task.job.rule, (0.0, 0.0))
        if not expected:
            actual = TRUSTED_MINUTES + sum(one for one, _ in self.took.values())
            expected = TRUSTED_MINUTES + sum(one for _, one in self.took.values())
        return (task.minutes or 0.0) * actual / expected

    def _left(self, key: Hashable) -> float:
        expected = self._expected(key)
        if key not in self.running:
            return expected
        elapsed = (self.clock() - self.running[key]) / 60
        return max(expected - elapsed, OVERDUE * elapsed)

    def _at_work(self) -> str:
        """Running jobs by rule, the earliest first. The only job of a rule is shown with its wildcards."""
        rules: dict[str, list[Hashable]] = defaultdict(list)
        for key in sorted(self.running, key=self.running.__getitem__):
            rules[self.tasks[key].job.rule].append(key)
        shown = []
        for rule, keys in rules.items():
            since = _words((self.clock() - self.running[keys[0]]) / 60)
            names = [f"{name}={value}" for name, value in self.tasks[keys[0]].job.wildcards.items()]
            words = names if len(keys) == 1 else [f"{len(keys)} jobs"]
            shown.append(f"{rule} ({', '.join([*words, f'for {since}'])})")
        return ", ".join(shown)


def _words(minutes: float) -> str:
    return f"{60 * minutes:.0f} s" if minutes < 2 else time_words(minutes)
