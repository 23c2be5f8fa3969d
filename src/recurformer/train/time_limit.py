"""A wall-clock limit on a process, from the environment: a training that would pass it saves and stops.

It knows no training. A stop changes nothing about the result of a run, so the limit is no setting of one.
"""

import os
import time

import psutil

VARIABLE = "RECURFORMER_MINUTES"


class StoppedForTime(RuntimeError):
    """The time was up before the work was done; called again, it goes on from where it stopped."""


class TimeLimit:
    """Minutes that this process may take from its start, the loading of models and data among them.

    Raises:
        ValueError: the variable RECURFORMER_MINUTES is not a positive number.
    """

    def __init__(self) -> None:
        minutes = os.environ.get(VARIABLE) or "inf"
        try:
            self.minutes = float(minutes)
        except ValueError:
            self.minutes = 0.0
        if not self.minutes > 0:
            raise ValueError(f"{VARIABLE}={minutes}: minutes are a positive number; leave it empty for no limit")
        self.began = psutil.Process().create_time()
        self.last_question = time.time()

    def elapsed_minutes(self) -> float:
        """Since the process began."""
        return (time.time() - self.began) / 60

    def stopped(self, step: int, steps: int) -> StoppedForTime:
        """The error of a training that has saved a checkpoint of `step` and stops."""
        minutes = self.elapsed_minutes()
        return StoppedForTime(f"stopped after {minutes:.0f} minutes at step {step} of {steps}: run again to resume")

    def leaves_no_time(self) -> bool:
        """Whether the work since the last question (or since this limit was made) cannot be done once more in time."""
        since, self.last_question = time.time() - self.last_question, time.time()
        return self.elapsed_minutes() + since / 60 > self.minutes
