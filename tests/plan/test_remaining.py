"""For how long a run will still last: by estimates, by what is done, by what runs, and without what failed."""

from threading import Thread

import pytest

from recurformer.plan.dry_run import Job
from recurformer.plan.remaining import Remaining, Task

CORES = {"_cores": 2}


class Clock:
    minutes = 0.0

    def __call__(self):
        return 60 * self.minutes


@pytest.fixture
def clock():
    return Clock()


def task(rule, minutes, *after, threads=1, **wildcards):
    return Task(Job(rule, (rule,), (), wildcards, threads, {}), minutes, {"_cores": threads, "mem": "x"}, after)


@pytest.mark.parametrize(
    ("tasks", "capacity", "minutes"),
    [
        ({}, CORES, 0),
        ({1: task("a", 4), 2: task("b", 2)}, CORES, 4),
        ({1: task("a", 4), 2: task("b", 2), 3: task("c", 6)}, CORES, 6),
        ({1: task("a", 4, threads=2), 2: task("b", 2, threads=2)}, CORES, 6),
        ({1: task("a", 4), 2: task("b", 2, 1), 3: task("c", 6, 2)}, CORES, 12),
        ({key: task("a", 4) for key in range(9)}, {}, 4),
        ({key: task("a", 4) for key in range(9)}, {"_cores": 100, "_nodes": 3}, 4),
        ({1: task("a", 4), 2: task("b", None, 1)}, CORES, 4),
        ({1: task("a", 4, "made before")}, CORES, 4),
    ],
)
def test_what_is_left_is_the_longest_chain_or_all_on_what_there_is(tasks, capacity, minutes):
    assert Remaining(tasks, capacity).minutes_left() == pytest.approx(minutes)


def test_jobs_that_are_done_correct_the_estimates_of_others(clock):
    tasks = {key: task("a", 10) for key in range(4)} | {"other": task("b", 10)}
    run = Remaining(tasks, {"_cores": 1}, clock=clock)
    assert run.minutes_left() == 50
    run.started(0)
    clock.minutes = 20
    run.finished(0)
    assert run.minutes_left() == pytest.approx(3 * 20 + 10 * 21 / 11)  # of its own rule twice, of another nearly


def test_what_runs_has_a_part_of_its_time_left_and_a_tenth_more_when_overdue(clock):
    run = Remaining({1: task("a", 10)}, CORES, clock=clock)
    run.started(1)
    clock.minutes = 4
    assert run.minutes_left() == pytest.approx(6)
    clock.minutes = 30
    assert run.minutes_left() == pytest.approx(3)


def test_a_failure_takes_along_what_needs_it_until_it_runs_again(clock):
    tasks = {1: task("a", 10), 2: task("b", 10, 1), 3: task("c", 1)}
    run = Remaining(tasks, CORES, clock=clock)
    run.started(1)
    run.failed(1)
    assert run.minutes_left() == pytest.approx(1)
    assert run.lines()[1].endswith("; 1 failed, so 2 cannot run")
    run.started(1)
    assert run.minutes_left() == pytest.approx(20)
    assert "failed" not in run.lines()[1]


def test_the_two_lines(clock):
    tasks = {key: task("train", 100, seed=str(key)) for key in range(3)} | {
        "x": task("figure", 1),
        "y": task("z", None),
    }
    run = Remaining(tasks, {"_cores": 4}, clock=clock)
    assert run.lines() == ("running: nothing", "0 of 5 jobs done in 0 s, about 100.0 minutes or more left")
    for key in (0, "x", "a group of jobs"):
        run.started(key)
    clock.minutes = 1
    run.finished("x")
    run.finished("unknown")
    run.started(1)
    clock.minutes = 3
    assert run.lines()[0] == "running: train (2 jobs, for 3.0 minutes)"
    run.finished("y")
    for key in (0, 2):
        run.finished(key)
    clock.minutes = 180
    assert run.lines()[0] == "running: train (seed=1, for 3.0 hours)"
    assert run.lines()[1].startswith("4 of 5 jobs done in 3.0 hours, about ")
    assert run.lines()[1].endswith(" left")


def test_one_thread_may_tell_while_another_asks():
    tasks = {key: task(f"rule{key}", 1.0) for key in range(300)}
    remaining = Remaining(tasks, {"_cores": 2})
    errors = []

    def ask():
        try:
            while len(remaining.done) < len(tasks):
                remaining.lines()
        except Exception as error:
            errors.append(error)

    asking = Thread(target=ask)
    asking.start()
    for key in tasks:
        remaining.started(key)
        remaining.finished(key)
    asking.join()
    assert not errors
