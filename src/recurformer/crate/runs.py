"""The runs of a study as its records tell them: what each read and wrote. It does not know how a crate words them."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

from recurformer.records import benchmark_beside, read_record


@dataclass(frozen=True)
class Run:
    """One record; `place` is its file, relative to the project's folder."""

    place: PurePosixPath
    record: dict[str, Any]

    @property
    def stage(self) -> str:
        """The command as a user types it."""
        return f"recurformer {self.record['stage'].replace('_', '-')}"

    @property
    def benchmark(self) -> PurePosixPath:
        """Where the workflow keeps what it cost."""
        return self.place.with_name(benchmark_beside(self.place.name))

    @property
    def outputs(self) -> list[PurePosixPath]:
        """What it wrote, where that lies now."""
        return [self.place.parent / name for name in self.record["outputs"]]

    @property
    def start(self) -> datetime:
        """With its time zone."""
        return datetime.fromisoformat(self.record["started"])

    @property
    def end(self) -> datetime:
        """Cut to the second, like the start."""
        return (self.start + timedelta(seconds=self.record["seconds"])).replace(microsecond=0)


def find_runs(places: Collection[PurePosixPath], without: str) -> list[Run]:
    """The runs whose records are at `places`, but for those of the stage `without`.

    Raises:
        ValueError: a record cannot be read, or there is none.
    """
    records = [place for place in places if place.name == "run.json" or place.name.endswith(".run.json")]
    runs = [Run(place, read_record(str(place))) for place in records]
    described = [run for run in runs if run.record["stage"] != without]
    if not described:
        raise ValueError("no run records among the results; run the study first")
    return described
