"""Experiment tracking: every run of a folder, with its settings, metrics and curve, in Trackio or in MLflow.

Run records and the metric logs beside them are the source. A tracker only shows them, and no table reads it. Importing
again changes nothing.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from recurformer.records import final_metrics, run_name

PROJECT = "recurformer"
STORE = "results/tracking"
LOG = "metrics.jsonl"
CURVE = ("loss", "learning_rate", "tokens", "seconds")
"""What a row of a metric log measures, beside its step."""
PLACE = "record"
"""Setting of an imported run: where its record lies."""
MLFLOW_VALUE_LENGTH = 6000
"""The longest value of a parameter in MLflow's database."""
MLFLOW_BATCH = 100
"""The most parameters that one call of MLflow takes; of metrics it takes 1000."""


def use_store() -> None:
    """Let the trackers write below `STORE`, to one project, unless the environment says otherwise."""
    places = {
        "TRACKIO_DIR": f"{os.path.abspath(STORE)}/trackio",
        "MLFLOW_TRACKING_URI": f"sqlite:///{os.path.abspath(STORE)}/mlflow.db",
    }
    if not places.keys() <= os.environ.keys():
        Path(STORE).mkdir(parents=True, exist_ok=True)
    for name, value in {**places, "MLFLOW_EXPERIMENT_NAME": PROJECT, "MLFLOW_DISABLE_TELEMETRY": "true"}.items():
        os.environ.setdefault(name, value)


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker shows it.

    Args:
        id: of its record.
        name: where its record lies.
        config: its settings, and what its record says about its code and machine.
        rows: (step, time, metrics); the last one has the final metrics.
    """

    id: str
    name: str
    config: dict[str, Any]
    rows: list[tuple[int, datetime, dict[str, float]]]

    @classmethod
    def of(cls, place: Path, record: Mapping[str, Any]) -> "TrackedRun":
        """The run with this record, and the curve of the metric log that it wrote, if any.

        Raises:
            ValueError: the metric log is damaged.
        """
        started = datetime.fromisoformat(record["started"])
        rows = [
            (row["step"], started + timedelta(seconds=row["seconds"]), {f"train/{name}": row[name] for name in CURVE})
            for row in _logged(place, record)
        ]
        cost = {"minutes": record["seconds"] / 60, "peak_memory_mib": record["peak_memory_bytes"] / 2**20}
        last = rows[-1][0] if rows else 0
        rows.append((last, started + timedelta(seconds=record["seconds"]), {**final_metrics(record), **cost}))
        about = {key: record[key] for key in ("stage", "argv", "seed", "started", "parents", "versions", "accelerator")}
        config = {**record["settings"], **about, **record["git"], **record["host"], PLACE: os.path.abspath(place)}
        return cls(record["run"], run_name(place), config, rows)

    def replaces(self, other: str, config: Mapping[str, Any] | None) -> bool:
        """Whether another run of the same name, with this id and these settings, is an earlier one of the same place.

        It is where its record or its checkpoints lie in this folder: a store may be shared by several.
        """
        place = str((config or {}).get(PLACE) or (config or {}).get("output_dir") or "/")
        return other != self.id and Path(place).is_relative_to(Path.cwd())


def _logged(place: Path, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of the metric logs that a run wrote: files beside its record, or rows of its recording.

    Raises:
        ValueError: a log is damaged.
    """
    from recurformer.results.frames import packed_rows  # imports pandas

    rows = []
    for log in (place.parent / name for name in record["outputs"] if Path(name).name.endswith(LOG)):
        try:
            text = log.read_text("utf-8").splitlines() if log.is_file() else []
            rows += [*map(json.loads, text), *packed_rows(log).to_dict("records")]
            [row[name] for row in rows for name in ("step", *CURVE)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{log}: not the metric log of a training ({type(error).__name__}: {error})") from None
    return rows


def to_trackio(runs: Sequence[TrackedRun]) -> int:
    """Write runs to Trackio's store; the number of those that were not there."""
    from trackio import fragments
    from trackio.sqlite_storage import SQLiteStorage

    fragments.import_inbox_dir()  # what waits there would bring deleted runs back
    known: dict[str, list[str]] = {}
    for record in SQLiteStorage.get_run_records(PROJECT):
        known.setdefault(str(record["name"]), []).append(str(record["id"]))
    there = {run for runs_of_name in known.values() for run in runs_of_name}
    ours = {run.id for run in runs}
    for run in runs:
        for other in set(known.get(run.name, [])) - ours:  # live curves, and runs whose results are gone
            if run.replaces(other, SQLiteStorage.get_run_config(PROJECT, run.name, run_id=other)):
                SQLiteStorage.delete_run(PROJECT, run.name, run_id=other)
        if run.id in there:
            continue
        steps, times, metrics = zip(*run.rows, strict=True)
        SQLiteStorage.bulk_log(
            PROJECT,
            run.name,
            list(metrics),
            list(steps),
            [time.isoformat() for time in times],
            run.config | {"_Group": run.config["stage"], "_Created": run.config["started"], "_Username": None},
            [f"{run.id}-{index}" for index in range(len(run.rows))],
            run_id=run.id,
        )
    return len(ours - there)


def to_mlflow(runs: Sequence[TrackedRun]) -> int:
    """Write runs to MLflow's server or database; the number of those that were not there."""
    from mlflow import MlflowClient, search_runs, set_experiment
    from mlflow.entities import Metric, Param

    experiment = set_experiment(os.environ["MLFLOW_EXPERIMENT_NAME"]).experiment_id
    client = MlflowClient()
    known = search_runs([experiment], output_format="list")
    whole = {run.data.tags["run"] for run in known if "run" in run.data.tags and run.info.status == "FINISHED"}
    ours = {run.id for run in runs}
    for run in runs:
        for other in known:
            named = other.info.run_name == run.name and other.data.tags.get("run") not in ours & whole
            if named and run.replaces(other.info.run_id, other.data.params):
                client.delete_run(other.info.run_id)
        if run.id in whole:
            continue
        tags = {"run": run.id, "group": run.config["stage"]}
        made = client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        params = [Param(key, str(value)[:MLFLOW_VALUE_LENGTH]) for key, value in run.config.items()]
        metrics = [
            Metric(re.sub(r"[^\w\-. :/]", "_", name), value, round(time.timestamp() * 1000), step)
            for step, time, values in run.rows
            for name, value in values.items()
        ]
        for start in range(0, max(len(params), len(metrics)), MLFLOW_BATCH):
            batch = slice(start, start + MLFLOW_BATCH)
            client.log_batch(made, metrics=metrics[batch], params=params[batch])
        client.set_terminated(made, "FINISHED")
    return len(ours - whole)


TRACKERS: dict[str, Callable[[Sequence[TrackedRun]], int]] = {"trackio": to_trackio, "mlflow": to_mlflow}
"""Name of a tracker -> what writes runs to it."""
