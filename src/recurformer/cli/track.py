"""Import the finished trainings below a folder into a tracker. Importing again changes nothing."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from recurformer.records import read_record, record_of
from recurformer.tracking import SINKS, require_sink
from recurformer.tracking.run import Row, Run


def _metric_logs(folder: Path) -> Iterator[Path]:
    """The metric logs of finished trainings: a running one keeps its own among its checkpoints."""
    for path in sorted({*folder.rglob("metrics.jsonl"), *folder.rglob("*.metrics.jsonl")}):
        if not any(part.startswith(".") or part.endswith(".checkpoints") for part in path.relative_to(folder).parts):
            yield path


def _rows(path: Path, started: str) -> list[Row]:
    begin = datetime.fromisoformat(started)
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [Row.of(row, begin + timedelta(seconds=row["seconds"])) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the metric log of a training ({type(error).__name__}: {error})") from None


def _send(run: Run, rows: list[Row], tracker: str) -> None:
    try:
        sink = SINKS[tracker]()
        sink.open(run)
        sink.log(rows)
        sink.drop_other_attempts()
        sink.finish(complete=True)
    except ImportError as error:
        raise ValueError(f"{tracker} is not installed here ({error}); docs/tracking.md says how") from None
    except Exception as error:
        raise RuntimeError(f"{tracker} did not take {run.name}: {error}") from error


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("results", help="folder of a study's results")
    parser.add_argument("--to", default="trackio", help=f"the tracker: {', '.join(SINKS)} (default: trackio)")


def run(args: Namespace) -> None:
    tracker = require_sink(args.to)
    if not Path(args.results).is_dir():
        raise ValueError(f"{args.results}: no such folder")
    counts = []
    for path in _metric_logs(Path(args.results)):
        place = record_of(path)
        if place is None:
            print(f"{path}: left out, no run record beside it names it", file=sys.stderr)
            continue
        record = read_record(place)
        rows = _rows(path, record["started"])
        _send(Run.of(record["stage"], record["settings"], path, attempt=record["run"]), rows, tracker)
        counts.append(len(rows))
    print(f"{tracker}: {len(counts)} runs, {sum(counts)} rows")
