"""A tracked run: its names, its settings, its rows, and the interface of a tracker. It knows no tracker."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

PROJECT = "recurformer"
TASKS = {"train": "text", "train-hashhop": "hashhop", "mqar": "mqar"}
"""Stage that trains -> what its runs are filed under."""
NOT_SETTINGS = {"record", "threads", "stage", "checkpoints"}
METRICS = ("loss", "learning_rate", "tokens", "seconds")
"""The measurements in a row of metrics.jsonl: nats per predicted token, the step's own rate, tokens read, seconds."""


class Row(NamedTuple):
    """The measurements after `step` steps, and their time."""

    step: int
    values: dict[str, float]
    time: datetime

    @classmethod
    def of(cls, row: Mapping[str, Any], time: datetime) -> Self:
        """A row of metrics.jsonl."""
        return cls(row["step"], {name: row[name] for name in METRICS}, time)


@dataclass(frozen=True)
class Run:
    """One training as a tracker shows it.

    Args:
        place: identifies the result: the metric log that the training leaves, seen from the working directory.
        attempt: identifies the training that makes it; a killed one that resumes is the same attempt.
        name: task / model / beta / peak learning rate, where runs differ in it / seed / what the metric log's name
            begins with and six digits for its place: they tell apart what all before them leaves equal.
        group: task / model.
        config: the settings of the stage.
    """

    place: str
    attempt: str
    name: str
    group: str
    config: dict[str, Any]

    @classmethod
    def of(cls, stage: str, settings: Mapping[str, Any], metrics: str | os.PathLike[str], attempt: str) -> Self:
        """The run of a stage that trains, from the settings that its run record holds as well.

        Raises:
            ValueError: the stage does not train.
        """
        task = TASKS.get(stage.replace("_", "-"))
        if task is None:
            raise ValueError(f"stage {stage!r} trains nothing; these do: {', '.join(TASKS)}")
        place = sha256(os.path.relpath(metrics).encode()).hexdigest()[:12]
        group = f"{task}/{settings['name']}" if "name" in settings else task
        rate = f"/lr-{settings['rate']}" if "rate" in settings else ""
        label = Path(metrics).name.removesuffix("metrics.jsonl") + place[:6]
        name = f"{group}/beta-{settings['beta']}{rate}/seed-{settings['seed']}/{label}"
        config = {key: value for key, value in settings.items() if key not in NOT_SETTINGS and value is not None}
        return cls(place, attempt, name, group, config)


class Sink(Protocol):
    """A tracker. Calls may take long and raise what they like: `live` keeps both from the training."""

    def open(self, run: Run) -> None:
        """Begin a run, or continue the one of the same place and attempt."""

    def log(self, rows: Sequence[Row]) -> None:
        """Add rows. A step that the run already has stays as it is."""

    def finish(self, complete: bool) -> None:
        """End the run; it may be continued when it is not complete."""

    def drop_other_attempts(self) -> None:
        """Remove what other attempts at the place of the opened run have left."""
