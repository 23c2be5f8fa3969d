"""Every run of a folder in one view: a table, the differences of two runs, an import into a tracker."""

import json
import operator
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurformer.cli.stage import argument, stage
from recurformer.cli.trace import LEDGERS, find_records
from recurformer.records import metrics_text, read_record, readable_records, run_name
from recurformer.tracking import TRACKERS, TrackedRun, use_store

if TYPE_CHECKING:
    import pandas as pd

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
CONDITION = re.compile(r"\s*([^=!<>\s]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")
SHOWN = ("run", "stage", "model", "beta", "seed", "metrics", "minutes", "peak_mib", "started", "name")
"""Columns of the table in the terminal."""


def _records(folder: str) -> list[tuple[Path, dict[str, Any]]]:
    """The runs whose records lie below a folder, oldest first.

    Raises:
        ValueError: there are none.
    """
    found = list(readable_records(Path(folder).rglob("*run.json")))
    if not found:
        raise ValueError(f"{folder}: no run record below it; name a folder of results, such as results or recorded/cpu")
    return sorted(found, key=lambda entry: entry[1]["started"])


def described(place: Path, record: dict[str, Any]) -> dict[str, Any]:
    """A run in one flat row: what its record says of itself, then its settings, then its final metrics."""
    accelerator, settings = record["accelerator"] or {}, record["settings"]
    about = {
        "run": record["run"],
        "stage": record["stage"],
        "model": settings.get("name"),
        "beta": settings.get("beta"),
        "seed": record["seed"],
        "started": record["started"],
        "minutes": round(record["seconds"] / 60, 2),
        "peak_mib": round(record["peak_memory_bytes"] / 2**20),
        "gpu": accelerator.get("name"),
        "processor": record["host"]["processor"],
        "cores": record["host"]["cores"],
        "commit": record["git"]["commit"],
        "dirty": record["git"]["dirty"],
        "parents": " ".join(record["parents"]),
        "name": run_name(place),
    }
    written = {key for key, value in settings.items() if str(value).rpartition("/")[2] in record["outputs"]}
    settings = {key: value for key, value in settings.items() if key not in {*about, *written}}
    return about | {key: _plain(value) for key, value in settings.items()} | record.get("metrics", {})


def _plain(value: Any) -> Any:
    """A value that fits a cell."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def _column(frame: "pd.DataFrame", key: str) -> str:
    """The name of a column.

    Raises:
        ValueError: no run has it.
    """
    if key not in frame:
        near = get_close_matches(key, frame.columns)
        raise ValueError(f"{key}: no run has such a setting or metric" + (f"; did you mean {near[0]}?" if near else ""))
    return key


def _number(text: Any) -> Any:
    """A number where the text is one."""
    try:
        return text if isinstance(text, bool) else float(text)
    except (TypeError, ValueError):
        return text


def _holds(value: Any, compare: str, wanted: str) -> bool:
    """Whether a condition holds; numbers compare as numbers, and a missing value fulfils none."""
    import pandas as pd

    value, other = _number(value), _number(wanted)
    if pd.isna(value):
        return False
    if isinstance(value, float) != isinstance(other, float):
        value, other = str(value), wanted
    return COMPARISONS[compare](value, other)


def _chosen(frame: "pd.DataFrame", conditions: list[str]) -> tuple["pd.DataFrame", list[str]]:
    """The runs for which all conditions hold, and the columns that they name."""
    keys = []
    for condition in conditions:
        if (parts := CONDITION.fullmatch(condition)) is None:
            raise ValueError(f"--where {condition!r}: write KEY=VALUE, or another of {' '.join(COMPARISONS)}")
        key, compare, wanted = parts.groups()
        keys.append(_column(frame, key))
        frame = frame[[_holds(value, compare, wanted) for value in frame[key]]]
    return frame, keys


def _one(target: str) -> dict[str, Any]:
    """The only run of a name.

    Raises:
        ValueError: there is none, or there are several.
    """
    places = find_records(target, LEDGERS)
    if len(places) != 1:
        raise ValueError(f"{target}: {len(places)} runs have this name; give more of the id of one")
    return described(places[0], read_record(places[0]))


def _print_difference(first: str, second: str) -> None:
    from tabulate import tabulate

    left, right = _one(first), _one(second)
    rows = [[key, left.get(key), right.get(key)] for key in left | right if left.get(key) != right.get(key)]
    print(tabulate(rows, headers=["", first, second], disable_numparse=True))


@stage(
    "list the runs of a folder with their settings and final metrics, or compare two",
    argument("words", nargs="*", metavar="FOLDER | diff A B", help="default: results; A and B: files or ids of runs"),
    argument("--stage", dest="only", help="only runs of this stage"),
    argument(
        "--where", nargs="+", default=[], metavar="KEY=VALUE", help="only runs with this value; also != < <= > >="
    ),
    argument("--sort", metavar="KEY", help="setting or metric to sort by (default: the time of the start)"),
    argument("--reverse", action="store_true", help="largest first"),
    argument("--csv", action="store_true", help="print all settings and metrics as CSV instead"),
)
def runs(args: Namespace) -> None:
    """List every run below a folder with its settings and final metrics, or show where two runs differ."""
    import pandas as pd
    from tabulate import tabulate

    folder, *compared = args.words or ["results"]
    if folder == "diff" and len(compared) == 2:
        _print_difference(*compared)
        return
    if compared:
        raise ValueError(f"{' '.join(args.words)}: give one folder, or `diff` and two runs")
    records = _records(folder)
    frame = pd.DataFrame([described(*entry) for entry in records], dtype=object)
    frame["metrics"] = [metrics_text(record, most=2) for _, record in records]
    if args.only:
        name = args.only.replace("_", "-")
        if name not in set(frame.stage):
            raise ValueError(f"--stage {args.only}: no such run; there are: {', '.join(sorted(set(frame.stage)))}")
        frame = frame[frame.stage == name]
    frame, keys = _chosen(frame, args.where)
    if args.sort:
        keys.append(_column(frame, args.sort))
        frame = frame.sort_values(args.sort, key=lambda column: column.map(_number), kind="stable")
    frame = frame[::-1] if args.reverse else frame
    if args.csv:
        print(frame.drop(columns="metrics").to_csv(index=False), end="")
        return
    shown = frame[list(dict.fromkeys([*SHOWN[:-1], *keys, SHOWN[-1]]))].fillna("")
    shown["run"] = shown["run"].str[:8]
    print(tabulate(shown, headers="keys", showindex=False, disable_numparse=True))
    print(f"{len(shown)} of {len(records)} runs")


def _tracked(folder: str) -> Iterator[TrackedRun]:
    for place, record in _records(folder):
        try:
            yield TrackedRun.of(place, record)
        except ValueError as error:
            print(f"{error}: left out", file=sys.stderr)


@stage(
    "import every run of a folder into a tracker",
    argument("results", help="folder of a study's results"),
    argument("--to", choices=list(TRACKERS), default="trackio", help="the tracker (default: trackio)"),
)
def track(args: Namespace) -> None:
    """Import every run below a folder into a tracker. Importing again changes nothing."""
    use_store()
    try:
        imported = sum(1 for _ in TRACKERS[args.to](_tracked(args.results)))
    except ImportError as error:
        raise ValueError(f"{args.to} is not installed here ({error}); docs/tracking.md says how") from None
    print(f"{args.to}: {imported} new runs of {len(_records(args.results))}")
