"""Trackio: a folder of files, and a dashboard that `make dashboard` opens.

The store lies in TRACKIO_DIR, by default results/tracking/trackio. Rows go to its inbox, a new file at a time, which
needs no lock and is safe on network file systems too; the dashboard takes them over when it opens and every 15 seconds.
A row is known by run and step, so that one sent twice is there once. What a resumed training computes again is shown
as it was computed the first time (the same on a CPU) until the finished run is imported.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime

from recurformer.tracking.run import PROJECT, Row, Run

STORE = "results/tracking/trackio"
ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID", "TRACKIO_DATASET_ID")
"""Variables by which the library would send runs to, or fetch them from, another machine."""


class TrackioSink:
    """See `recurformer.tracking.run.Sink`."""

    def __init__(self) -> None:
        os.environ.setdefault("TRACKIO_DIR", os.path.abspath(STORE))
        for name in ELSEWHERE:
            os.environ.pop(name, None)
        from trackio import Api, fragments

        self.api, self.fragments = Api(), fragments
        self.writer = fragments.FragmentWriter()

    def open(self, run: Run) -> None:
        """Nothing is written before the first row."""
        opened = datetime.now(UTC).isoformat()
        self.run, self.id = run, f"{run.place}-{run.attempt}"
        self.config: dict | None = run.config | {"_Group": run.group, "_Created": opened, "_Username": None}

    def log(self, rows: Sequence[Row]) -> None:
        """Write one file."""
        entries = [
            {
                "project": PROJECT,
                "run": self.run.name,
                "run_id": self.id,
                "metrics": row.values,
                "step": row.step,
                "timestamp": row.time.isoformat(),
                "log_id": f"{self.id}-{row.step}",
            }
            for row in rows
        ]
        entries[0]["config"] = self.config
        self.writer.write_local([self.fragments.metric_record(entry) for entry in entries])
        self.config = None  # once is enough

    def finish(self, complete: bool) -> None:
        """Nothing to do: a run in this store is neither open nor closed."""

    def drop_other_attempts(self) -> None:
        """Take over the inbox first: what waits there would come back."""
        self.fragments.import_inbox_dir()
        for other in self.api.runs(PROJECT):
            if other.id.startswith(f"{self.run.place}-") and other.id != f"{self.run.place}-{self.run.attempt}":
                other.delete()
