"""MLflow: the server of MLFLOW_TRACKING_URI, by default the database results/tracking/mlflow.db.

What a resumed training computes again is shown as it was computed the first time (the same on a CPU) until the finished
run is imported.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from recurformer.files import atomic_path
from recurformer.tracking.run import PROJECT, Row, Run

FILE = "sqlite:///"
STORE = "results/tracking/mlflow.db"
VALUE_LENGTH = 6000
"""The longest value of a parameter that the database holds."""
BATCH = 100
"""Most parameters that one call takes; of metrics it takes 1000."""


class MLflowSink:
    """See `recurformer.tracking.run.Sink`."""

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        for name in ("alembic", "mlflow.store.db.utils"):  # a line for every step of making a database
            logging.getLogger(name).setLevel(logging.WARNING)
        self.make_client, self.metric, self.param = MlflowClient, Metric, Param

    def open(self, run: Run) -> None:
        """Look for the run by its tags; MLflow chooses the ids of runs itself."""
        self.run = run
        uri = os.environ.get("MLFLOW_TRACKING_URI") or FILE + os.path.abspath(STORE)
        if uri.startswith(FILE):
            self._make_once(Path(uri.removeprefix(FILE)))
        self.client = self.make_client(uri)
        experiment = self.client.get_experiment_by_name(PROJECT)
        self.experiment = experiment.experiment_id if experiment else self.client.create_experiment(PROJECT)
        found = self._runs(f"tags.place = '{run.place}' and tags.attempt = '{run.attempt}'")
        if found:
            self.id = found[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
        else:
            tags = {"place": run.place, "attempt": run.attempt, "group": run.group}
            self.id = self.client.create_run(self.experiment, tags=tags, run_name=run.name).info.run_id
            params = [self.param(key, str(value)[:VALUE_LENGTH]) for key, value in run.config.items()]
            for start in range(0, len(params), BATCH):
                self.client.log_batch(self.id, params=params[start : start + BATCH])
        self.steps = {metric.step for metric in self.client.get_metric_history(self.id, "loss")}

    def log(self, rows: Sequence[Row]) -> None:
        """One call for many rows."""
        new = [row for row in rows if row.step not in self.steps]
        for start in range(0, len(new), BATCH):
            metrics = [
                self.metric(name, value, round(row.time.timestamp() * 1000), row.step)
                for row in new[start : start + BATCH]
                for name, value in row.values.items()
            ]
            self.client.log_batch(self.id, metrics=metrics)
        self.steps.update(row.step for row in new)

    def finish(self, complete: bool) -> None:
        """Close the run."""
        self.client.set_terminated(self.id, "FINISHED" if complete else "FAILED")

    def drop_other_attempts(self) -> None:
        """Put them into MLflow's bin, which `mlflow gc` empties."""
        for other in self._runs(f"tags.place = '{self.run.place}' and tags.attempt != '{self.run.attempt}'"):
            self.client.delete_run(other.info.run_id)

    def _runs(self, condition: str) -> list:
        return list(self.client.search_runs([self.experiment], filter_string=condition))

    def _make_once(self, database: Path) -> None:
        """Two processes that make a database at once both fail, and one that is killed leaves half of it."""
        database.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(database.with_suffix(".lock")):
            if not database.exists():
                with atomic_path(database) as path:
                    self.make_client(f"{FILE}{path}").create_experiment(PROJECT)
