"""What is known of runs: a table, the differences of two, an import into a tracker, the origin of a result."""

import json
import operator
import os
import re
import shlex
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from inspect import unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurformer.cli.render import LEDGER, read_ledger
from recurformer.cli.stage import STAGES, argument, stage
from recurformer.digest import functions_used
from recurformer.records import (
    PACK,
    Record,
    ancestors,
    final_metrics,
    find_records,
    metrics_text,
    packed,
    read_record,
    record_of,
    run_name,
)
from recurformer.study.subject import Subject
from recurformer.tracking import TRACKERS, TrackedRun, use_store

if TYPE_CHECKING:
    import pandas as pd

PLACES = ("results", "figures", "recorded")
"""The folders of studies and recordings."""
MEASURING = frozenset({"heads", "measure", "evict", "train", "recover"})
"""The folders of the package whose functions measure."""
LEDGERS = (LEDGER, f"recorded/cpu/{LEDGER}")
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _named(text: str) -> list[str]:
    """The run ids in a text, each once."""
    return list(dict.fromkeys(match.group() for match in RUN_ID.finditer(text)))


def _in_tables(claim: str, ledgers: Sequence[str]) -> list[str]:
    """The run ids in the rows about a claim, in the tables beside some ledgers."""
    tables = (table.read_text("utf-8") for ledger in ledgers for table in Path(ledger).parent.glob("tables/*.csv"))
    return _named("\n".join(line for table in tables for line in table.splitlines() if f",{claim}," in line))


def _ledger_claims(ledgers: Sequence[str]) -> list[dict[str, Any]]:
    """The claims of all ledgers that exist, each with its `ledger`; those of the first ledger first."""
    known = [ledger for ledger in ledgers if Path(ledger).is_file()]
    return [claim | {"ledger": ledger} for ledger in known for claim in read_ledger(ledger)["claims"]]


def _records_of_runs(runs: list[str]) -> list[Path]:
    by_run = {record["run"]: path for path, record in find_records(*PLACES)}
    return [by_run[run] for run in runs if run in by_run]


def records_behind(target: str, ledgers: Sequence[str]) -> list[Path]:
    """The records of the runs that wrote what `target` names; none for a claim that no run decides.

    Raises:
        ValueError: nothing here is known under that name.
    """
    path = Path(target)
    if path.exists():
        beside = record_of(path)
        found = [beside] if beside else _records_of_runs(_named("" if path.is_dir() else path.read_text("latin-1")))
        if not found:
            raise ValueError(f"{target}: no run record beside it names it, and no run id in it is known here")
        return found
    claims = [claim for claim in _ledger_claims(ledgers) if claim["id"] == target]
    for claim in claims:
        if claim["evidence"] and (found := _records_of_runs(claim["evidence"]["runs"])):
            return found
    if found := [path for path, record in find_records(*PLACES) if record["run"].startswith(target)]:
        return found
    if claims and (found := _records_of_runs(_in_tables(target, ledgers))):  # measured, but no judge could decide by it
        return found
    if claims and not claims[0]["evidence"]:
        return []
    why = f"the runs that decided it are not in {', '.join(PLACES)}"
    if not claims:
        why = f"no such file, no run in {', '.join(PLACES)} has this name, and no claim of {' or '.join(ledgers)}"
        if near := get_close_matches(target, [claim["id"] for claim in _ledger_claims(ledgers)]):
            why += f"; did you mean {' or '.join(near)}?"
    raise ValueError(f"{target}: {why}" + (f"; its judge is {judge}" if (judge := _judge_of(target)) else ""))


def _code(function: Callable[..., object]) -> str:
    """File and line where the code of a function, perhaps a partial one, begins."""
    code = unwrap(getattr(function, "func", function)).__code__
    return f"{os.path.relpath(code.co_filename)}:{code.co_firstlineno}"


def _calls(record: Mapping[str, Any]) -> str:
    """File, line and name of the functions that measured or rendered what a run wrote."""
    name, renderers = record["stage"], dict[str, Callable[..., Any]]()
    if name == "figure":
        from recurformer.render.figures import FIGURES

        renderers = FIGURES
    elif name == "table":
        from recurformer.claims.ledger import reviewer_questions
        from recurformer.render.tables import TABLES

        renderers = {**TABLES, "reviewer_questions": reviewer_questions}
    if renderers and (key := record["settings"][name]) in renderers:
        return f"{_code(renderers[key])} {key}"
    measured = functions_used(STAGES[name].place, MEASURING) if name in STAGES else ()
    return ", ".join(f"{os.path.relpath(file)}:{line} {function}" for file, line, function in measured)


def _judge_of(target: str) -> str:
    """File, line and name of the function that decides the claim of this name, if there is such a claim."""
    from recurformer.claims.ledger import all_claims

    judge = next((claim.judge for claim in all_claims() if claim.id == target), None)
    return f"{_code(judge)} {getattr(judge, 'func', judge).__name__}" if judge else ""


def _verdict_on(target: str, ledgers: Sequence[str]) -> str:
    """What a ledger says of a claim, and which one, in one paragraph; empty where the target is none."""
    claims = [claim for claim in _ledger_claims(ledgers) if claim["id"] == target]
    if not claims:
        return ""
    claim = min(claims, key=lambda one: one["evidence"] is None)
    texts = {"place": claim.get("place"), "says": claim.get("statement"), "printed": claim.get("paper")}
    texts |= {name: claim.get(name) for name in ("ours", "test", "tolerance", "verdict", "reason")}
    texts |= {"source": (claim["evidence"] or {}).get("source"), "ledger": claim["ledger"], "judge": _judge_of(target)}
    return "\n".join([f"claim {target}", *(f"  {name:<9} {text}" for name, text in texts.items() if text), ""])


@cache
def _files_in(rows: Path) -> set[str]:
    """The files of a study whose rows are in a file of its recording, if there is such a file."""
    import pandas as pd

    return set(pd.read_parquet(rows, columns=["file"])["file"]) if rows.is_file() else set()


def _kept(path: Path, record: Mapping[str, Any]) -> list[str]:
    """Where the record of a run is; of a recording, also what the run wrote and where its rows are."""
    from recurformer.results.frames import PACKED, packed_kind

    packs = ((folder, list(packed(folder))) for folder in path.parents)
    found = next(((folder, places) for folder, places in packs if path in places), None)
    if found is None:
        return [f"  record   {os.path.relpath(path)}"]
    folder, places = found
    lines = [f"  record   line {places.index(path) + 1} of {os.path.relpath(folder / PACK)}"]
    for name in record["outputs"]:
        place = (path.parent / name).relative_to(folder)
        rows = folder / PACKED / f"{packed_kind(place)}.parquet"
        kept = str(place) in _files_in(rows)
        lines.append(f"  wrote    {place}" + (f", rows of {os.path.relpath(rows)}" if kept else ""))
    return lines


def describe(path: Path, record: dict[str, Any], known: Mapping[str, dict[str, Any]]) -> str:
    """One run in a few lines: its command and its code, and the stages of the `known` runs that wrote its inputs."""
    commit = (record["git"]["commit"] or "unknown")[:12] + (", changed" if record["git"]["dirty"] else "")
    host, accelerator = record["host"], record["accelerator"]
    machine = f"{host['processor']}, {host['cores']} cores" + (f", {accelerator['name']}" if accelerator else "")
    machine += f", SLURM job {host['slurm_job']}" if "slurm_job" in host else ""
    parents = [known[run] for run in record["parents"] if run in known]
    code = {parent["stage"]: _calls(parent) for parent in parents}
    lines = [
        f"run {record['run']}  {record['stage']}  {record['started']}  {record['seconds']:,.1f} s",
        *_kept(path, record),
        f"  stage    {_code(STAGES[record['stage']].function)}" if record["stage"] in STAGES else "",
        f"  code     {calls}" if (calls := _calls(record)) else "",
        *(
            f"  inputs   {count} of {stage}" + (f": {code[stage]}" if code[stage] else "")
            for stage, count in Counter(parent["stage"] for parent in parents).items()
        ),
        f"  command  {shlex.join(record['argv'])}",
        f"  seed     {record['seed']}" if record["seed"] is not None else "",
        f"  commit   {commit}",
        f"  machine  {machine}, peak {record['peak_memory_bytes'] / 2**20:,.0f} MiB",
        f"  metrics  {metrics}" if (metrics := metrics_text(record)) else "",
        *(
            f"  input    {file['path']} came from run {file['run']}, whose record is not kept here"
            for file in record["inputs"]
            if file["run"] and file["run"] not in known
        ),
    ]
    return "\n".join(filter(None, lines))


def _used_by(runs: set[str], ledgers: Sequence[str]) -> list[str]:
    """What rests on these runs: files written by runs that read theirs, and claims that they decide."""
    files = [
        str(path.parent / name)
        for path, record in find_records(*PLACES)
        if runs.intersection(record["parents"])
        for name in record["outputs"]
        if (path.parent / name).exists()  # a recording leaves out what can be rendered again
    ]
    claims = [
        f"claim {claim['id']}: {claim['verdict']} in {claim['ledger']}"
        for claim in _ledger_claims(ledgers)
        if claim["evidence"] and runs.intersection(claim["evidence"]["runs"])
    ]
    return [*files, *claims]


@stage(
    "list the runs that made a figure, a table, a claim or a file",
    argument(
        "target", help="file or folder as a run wrote it, id of a claim (table4/llama2-7b/0.90/cs_10k) or of a run"
    ),
    argument("--ledger", nargs="+", default=LEDGERS, help=f"ledgers with claims (default: {' and '.join(LEDGERS)})"),
    argument("--direct", action="store_true", help="only the runs that wrote it, without the runs before them"),
)
def trace(args: Namespace) -> None:
    """List the runs that made a figure, table, measurement, claim or run: commands, seeds, commits, hardware, time."""
    from recurformer.claims.claim import INCONSISTENCIES

    if contradiction := INCONSISTENCIES.get(args.target):
        print("\n".join([f"{contradiction.place}: {contradiction.rule}", *contradiction.arithmetic]))
        return
    places = records_behind(args.target, args.ledger)
    if not Path(args.target).exists() and (verdict := _verdict_on(args.target, args.ledger)):
        print(verdict)
    if not places:
        print("no run is kept that decides it")
        return
    runs = {place: record for first in places for place, record in ancestors(first)}
    wrote = {place.resolve(): runs[place.resolve()] for place in places}
    known = {record["run"]: record for record in runs.values()}
    shown = wrote if args.direct else runs
    print("\n\n".join(describe(place, record, known) for place, record in shown.items()))
    wall, cpu = (sum(run.get(key, 0) for run in shown.values()) / 60 for key in ("seconds", "cpu_seconds"))
    print(f"\n{len(shown)} runs, {wall:,.1f} minutes, {cpu:,.1f} minutes of a processor")
    if used := _used_by({record["run"] for record in wrote.values()}, args.ledger):
        print("\nused by\n" + "\n".join(f"  {line}" for line in used))


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
CONDITION = re.compile(r"\s*([^=!<>\s]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")
STUDY = "results figures"
"""Folders in which the default study's runs lie."""
SHOWN = ("run", "stage", "model", "beta", "seed", "metrics", "minutes", "peak_mib", "started", "name")
"""Columns of the table in the terminal."""
ABOUT = frozenset({"run", "stage", "commit", "difference", "lock", "name"})
"""Columns whose values are no numbers, whatever they look like, beside the texts of measurements and the versions."""


def _records(folders: Sequence[str]) -> list[Record]:
    """Place and record of every run below some folders, oldest first; a damaged record is named, left out.

    A run may have several records, of a file each: it has the metrics of all of them.

    Raises:
        ValueError: there are none.
    """
    found: dict[str, Record] = {}

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
    return sorted(found.values(), key=lambda entry: entry[1]["started"])


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
        **{key: record["host"].get(key) for key in ("processor", "cores", "slurm_job")},
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


def _comparable(key: str, values: "pd.Series") -> "pd.Series":
    """Numbers, or texts where one is none. Names stay texts, such as a model 007; true and false too."""
    import pandas as pd

    from recurformer.results.frames import TEXTS

    numbers = pd.to_numeric(values.astype(str), errors="coerce")
    is_text = key in ABOUT or key in TEXTS or key.endswith("_version") or numbers.isna().any()
    return values.astype(str).str.lower() if is_text else numbers


def _chosen(frame: "pd.DataFrame", conditions: list[str]) -> tuple["pd.DataFrame", list[str]]:
    """The runs for which all conditions hold, and the columns that they name. A missing value fulfils no condition."""
    import pandas as pd

    keys = []
    for condition in conditions:
        if (parts := CONDITION.fullmatch(condition)) is None:
            raise ValueError(f"--where {condition!r}: write KEY=VALUE, or another of {' '.join(COMPARISONS)}")
        key, compare, text = parts.groups()
        keys.append(_column(frame, key))
        frame = frame[frame[key].notna()]
        values = _comparable(key, pd.concat([frame[key], pd.Series([text], dtype=object)]))
        frame = frame[COMPARISONS[compare](values.iloc[:-1], values.iloc[-1])]
    return frame, keys


def _one(target: str) -> tuple[dict[str, Any], dict[str, float]]:
    """The only run of a name (an id, a file that it wrote, its record, or its name in the table), and its metrics.

    Raises:
        ValueError: there is none, or there are several.
    """
    names = (target, f"{target}.run.json", f"{target}/run.json")
    records = [Path(folder, name) for folder in ("", "results") for name in names if name.endswith("run.json")]
    places = [place for place in records if place.is_file()] or records_behind(target, LEDGERS)
    found = [read_record(place) for place in places]
    if (runs := len({record["run"] for record in found})) != 1:
        said = f"it names {runs} runs, and none wrote it" if Path(target).is_file() else f"{runs} runs have this name"
        raise ValueError(f"{target}: {said}; give more of the id of one")
    record = _merged(found)
    return described(places[0], record), final_metrics(record)


def _alike(value: Any) -> str:
    """A setting as a text: a record may hold a number as a text, and nothing as an empty list."""
    text = str(value).replace('"', "")
    return "" if text in {"None", "[]"} else text


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
    argument("--csv", action="store_true", help="print all settings and metrics that one of them has, as CSV"),
)
def runs(args: Namespace) -> None:
    """List every run below some folders with its settings and final metrics, or show where two runs differ."""
    import pandas as pd
    from tabulate import tabulate

    first, *compared = args.words or STUDY.split()
    if first == "diff":
        if len(compared) != 2:
            raise ValueError(f"diff {' '.join(compared)}: give two runs")
        (left, metrics), (right, others) = map(_one, compared)
        rows = [[key, left.get(key), right.get(key)] for key in left | right]
        differing = [row for row in rows if _alike(row[1]) != _alike(row[2])]
        print(tabulate(differing, headers=["", *compared], disable_numparse=True))
        both = metrics.keys() & others.keys()
        alike = sum(metrics[name] == others[name] for name in both)
        equal = f"{alike} of the {len(both)} metrics that both have are equal, to the last digit"
        print(equal if both else "no final metric is in both records: compare the files that the runs wrote")
        return
    records = _records([first, *compared])
    frame = pd.DataFrame([described(place, record) for place, record in records], dtype=object)
    if args.only:
        name = args.only.replace("_", "-")
        if name not in set(frame.stage):
            raise ValueError(f"--stage {args.only}: no such run; there are: {', '.join(sorted(set(frame.stage)))}")
        frame = frame[frame.stage == name]
    frame, keys = _chosen(frame, args.where)
    if args.sort:
        keys.append(_column(frame, args.sort))
        order = _comparable(args.sort, frame[args.sort].dropna()).sort_values(kind="stable").index
        frame = frame.loc[[*order, *frame.index.difference(order, sort=False)]]
    frame = frame[::-1] if args.reverse else frame
    if args.csv:
        filled = frame.loc[:, frame.notna().any() | frame.columns.isin(SHOWN)]
        print(filled.drop(columns="metrics").to_csv(index=False), end="")
        return
    shown = frame[list(dict.fromkeys([*SHOWN[:-1], *keys, SHOWN[-1]]))].fillna("")
    shown["run"] = shown["run"].str[:8]
    print(tabulate(shown, headers="keys", showindex=False, disable_numparse=True))
    print(f"{len(shown)} of {len(records)} runs")


@stage(
    "import every run of a folder into a tracker",
    argument("folders", nargs="+", help="folders of a study's results and figures"),
    argument("--to", choices=list(TRACKERS), default="trackio", help="the tracker (default: trackio)"),
)
def track(args: Namespace) -> None:
    """Import every run below some folders into a tracker. Importing again changes nothing."""
    records, tracked = _records(args.folders), list[TrackedRun]()
    for place, record in records:
        try:
            tracked.append(TrackedRun.of(place, record))
        except ValueError as error:  # of a damaged curve
            print(f"{error}; left out", file=sys.stderr)
    use_store()
    try:
        new = TRACKERS[args.to](tracked)
    except ImportError as error:
        raise ValueError(f"{args.to} is not installed here ({error}); docs/provenance.md says how") from None
    print(f"{args.to}: {new} new runs of {len(records)}")
