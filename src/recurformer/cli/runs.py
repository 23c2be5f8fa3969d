"""Every run of a folder in one view: a table, the differences of two runs, an import into a tracker."""

import json
import operator
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurformer.cli.stage import argument, stage
from recurformer.cli.trace import LEDGERS, records_behind
from recurformer.records import final_metrics, find_records, metrics_text, read_record, run_name
from recurformer.study.subject import Subject
from recurformer.tracking import TRACKERS, TrackedRun, use_store

if TYPE_CHECKING:
    import pandas as pd

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
CONDITION = re.compile(r"\s*([^=!<>\s]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")
STUDY = "results figures"
"""Folders in which the default study's runs lie."""
SHOWN = ("run", "stage", "model", "beta", "seed", "metrics", "minutes", "peak_mib", "started", "name")
"""Columns of the table in the terminal."""
ABOUT = frozenset({"run", "stage", "commit", "difference", "lock", "name"})
"""Columns whose values are no numbers, whatever they look like, beside the texts of measurements and the versions."""


def _records(folders: Sequence[str]) -> list[tuple[Path, dict[str, Any], dict[str, Any]]]:
    """Place, record and description of every run below some folders, oldest first; a damaged record is named, left out.

    A run may have several records, of a file each: it has the metrics of all of them.

    Raises:
        ValueError: there are none.
    """
    found: dict[str, tuple[Path, dict[str, Any]]] = {}

    def leave_out(place: Path, error: Exception) -> None:
        print(f"{place}: left out, it is no whole run record ({type(error).__name__}: {error})", file=sys.stderr)

    for place, record in find_records(*folders, damaged=leave_out):
        try:
            described(place, record)
            first_place, first = found.get(record["run"], (place, record))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            leave_out(place, error)
        else:
            found[record["run"]] = first_place, _merged([first, record])
    if not found:
        named = ", ".join(folders)
        raise ValueError(f"{named}: no run record below it; name a folder of results, such as results or recorded/cpu")
    runs = sorted(found.values(), key=lambda entry: entry[1]["started"])
    return [(place, record, described(place, record)) for place, record in runs]


def _merged(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first of several records of a run, with the final metrics of all."""
    return {**records[0], "metrics": {name: value for one in records for name, value in final_metrics(one).items()}}


def _beta(settings: Mapping[str, Any]) -> Any:
    """The fraction of heads replaced, where a run has one."""
    with suppress(KeyError, ValueError):
        subject = Subject.parse(settings["subject"])
        return None if subject.kind == "replaced" else subject.beta
    return settings.get("beta")


def described(place: Path, record: dict[str, Any]) -> dict[str, Any]:
    """A run in one flat row: what its record says of itself, then its settings, then its final metrics."""
    accelerator, settings = record["accelerator"] or {}, record["settings"]
    about = {
        "run": record["run"],
        "stage": record["stage"],
        "model": settings.get("name"),
        "beta": _beta(settings),
        "seed": record["seed"],
        "started": record["started"],
        "minutes": round(record["seconds"] / 60, 2),
        "peak_mib": round(record["peak_memory_bytes"] / 2**20),
        "metrics": metrics_text(record, most=2),
        "gpu": accelerator.get("name"),
        **{key: record["host"][key] for key in ("processor", "cores")},
        **{key: record["git"][key] for key in ("commit", "dirty", "difference")},
        "lock": record["lock"],
        "scan": " ".join(record["scan"]),
        "parents": " ".join(record["parents"]),
        "name": run_name(place),
    }
    outputs = tuple(f"/{name}" for name in record["outputs"])  # at the ends of paths: a recording has moved
    kept = {
        key: json.dumps(value) if isinstance(value, list | dict) else value
        for key, value in settings.items()
        if key not in about and not str(value).endswith(outputs)
    }
    versions = {f"{name}_version": version for name, version in record["versions"].items()}
    return about | versions | kept | final_metrics(record)


def _column(frame: "pd.DataFrame", key: str) -> str:
    """The name of a column.

    Raises:
        ValueError: no run has it.
    """
    if key not in frame:
        near = get_close_matches(key, frame.columns)
        raise ValueError(f"{key}: no run has such a setting or metric" + (f"; did you mean {near[0]}?" if near else ""))
    return key


def _ordered(key: str, value: Any) -> tuple[bool, Any]:
    """Values as they compare: numbers before texts. Names stay texts, such as a model 007; true and false too."""
    from recurformer.results.frames import TEXTS

    text = key in ABOUT or key in TEXTS or key.endswith("_version")
    if not text and not isinstance(value, bool):
        with suppress(TypeError, ValueError):
            return False, float(value)
    return True, str(value).lower() if isinstance(value, bool) else str(value)


def _chosen(frame: "pd.DataFrame", conditions: list[str]) -> tuple["pd.DataFrame", list[str]]:
    """The runs for which all conditions hold, and the columns that they name. A missing value fulfils no condition."""
    keys = []
    for condition in conditions:
        if (parts := CONDITION.fullmatch(condition)) is None:
            raise ValueError(f"--where {condition!r}: write KEY=VALUE, or another of {' '.join(COMPARISONS)}")
        key, compare, text = parts.groups()
        keys.append(_column(frame, key))
        wanted = _ordered(key, text.lower() if text.lower() in {"true", "false"} else text)
        holds = frame[key].map(lambda value: COMPARISONS[compare](_ordered(key, value), wanted))  # noqa: B023
        frame = frame[holds.astype(bool) & frame[key].notna()]
    return frame, keys


def _one(target: str) -> dict[str, Any]:
    """The only run of a name: an id, a file that it wrote, its record, or its name in the table.

    Raises:
        ValueError: there is none, or there are several.
    """
    names = (target, f"{target}.run.json", f"{target}/run.json")
    records = [Path(folder, name) for folder in ("", "results") for name in names if name.endswith("run.json")]
    places = [place for place in records if place.is_file()] or records_behind(target, LEDGERS)
    found = [read_record(place) for place in places]
    if (runs := len({record["run"] for record in found})) != 1:
        raise ValueError(f"{target}: {runs} runs have this name; give more of the id of one")
    return described(places[0], _merged(found))


def _print_difference(first: str, second: str) -> None:
    from tabulate import tabulate

    left, right = _one(first), _one(second)
    rows = [[key, left.get(key), right.get(key)] for key in left | right if left.get(key) != right.get(key)]
    print(tabulate(rows, headers=["", first, second], disable_numparse=True))


@stage(
    "list the runs of a folder with their settings and final metrics, or compare two",
    argument(
        "words", nargs="*", metavar="FOLDERS | diff A B", help=f"default: {STUDY}; A and B: files, names or ids of runs"
    ),
    argument("--stage", dest="only", help="only runs of this stage"),
    argument(
        "--where", nargs="+", default=[], metavar="KEY=VALUE", help="only runs with this value; also != < <= > >="
    ),
    argument("--sort", metavar="KEY", help="setting or metric to sort by (default: the time of the start)"),
    argument("--reverse", action="store_true", help="largest first"),
    argument("--csv", action="store_true", help="print all settings and metrics as CSV instead"),
)
def runs(args: Namespace) -> None:
    """List every run below some folders with its settings and final metrics, or show where two runs differ."""
    import pandas as pd
    from tabulate import tabulate

    first, *compared = args.words or STUDY.split()
    if first == "diff":
        if len(compared) != 2:
            raise ValueError(f"diff {' '.join(compared)}: give two runs")
        _print_difference(*compared)
        return
    records = _records([first, *compared])
    frame = pd.DataFrame([row for *_, row in records], dtype=object)
    if args.only:
        name = args.only.replace("_", "-")
        if name not in set(frame.stage):
            raise ValueError(f"--stage {args.only}: no such run; there are: {', '.join(sorted(set(frame.stage)))}")
        frame = frame[frame.stage == name]
    frame, keys = _chosen(frame, args.where)
    if args.sort:
        keys.append(_column(frame, args.sort))
        present = frame[frame[args.sort].notna()]
        order = sorted(present.index, key=lambda index: _ordered(args.sort, present.loc[index, args.sort]))
        frame = frame.loc[[*order, *frame.index.difference(order, sort=False)]]
    frame = frame[::-1] if args.reverse else frame
    if args.csv:
        print(frame.drop(columns="metrics").to_csv(index=False), end="")
        return
    shown = frame[list(dict.fromkeys([*SHOWN[:-1], *keys, SHOWN[-1]]))].fillna("")
    shown["run"] = shown["run"].str[:8]
    print(tabulate(shown, headers="keys", showindex=False, disable_numparse=True))
    print(f"{len(shown)} of {len(records)} runs")


def _tracked(records: list[tuple[Path, dict[str, Any], dict[str, Any]]]) -> list[TrackedRun]:
    """The runs as trackers show them; one with a damaged curve is named and left out."""
    runs = []
    for place, record, _ in records:
        try:
            runs.append(TrackedRun.of(place, record))
        except ValueError as error:
            print(f"{error}; left out", file=sys.stderr)
    return runs


@stage(
    "import every run of a folder into a tracker",
    argument("folders", nargs="+", help="folders of a study's results and figures"),
    argument("--to", choices=list(TRACKERS), default="trackio", help="the tracker (default: trackio)"),
)
def track(args: Namespace) -> None:
    """Import every run below some folders into a tracker. Importing again changes nothing."""
    records = _records(args.folders)
    use_store()
    try:
        new = TRACKERS[args.to](_tracked(records))
    except ImportError as error:
        raise ValueError(f"{args.to} is not installed here ({error}); docs/tracking.md says how") from None
    print(f"{args.to}: {new} new runs of {len(records)}")
