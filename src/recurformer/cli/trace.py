"""The origin of a result: the runs that made a figure, a table, a claim or a file, and their code."""

import os
import re
import shlex
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from inspect import unwrap
from pathlib import Path
from typing import Any

from recurformer.cli.claims import read_ledger
from recurformer.cli.stage import STAGES, argument, stage
from recurformer.digest import functions_used
from recurformer.records import Record, ancestors, find_records, metrics_text, record_of

PLACES = ("results", "figures", "recorded")
MEASURING = frozenset({"heads", "measure", "evict", "train", "recover"})
"""The folders of the package whose functions measure."""
LEDGERS = ("results/claims.json", "recorded/cpu/results/claims.json")
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _records() -> list[Record]:
    """Every readable record of this folder's studies and recordings."""
    return find_records(*PLACES)


def _embedded(path: Path) -> list[str]:
    """The run ids that a figure or table carries in itself."""
    text = path.read_bytes().decode("latin-1")
    return list(dict.fromkeys(match.group() for match in RUN_ID.finditer(text)))


def _ledger_claims(ledgers: Sequence[str]) -> list[dict[str, Any]]:
    """The claims of all ledgers that exist, those of the first ledger first."""
    return [claim for ledger in ledgers if Path(ledger).is_file() for claim in read_ledger(ledger)["claims"]]


def _records_of_runs(runs: list[str]) -> list[Path]:
    by_run = {record["run"]: path for path, record in _records()}
    return [by_run[run] for run in runs if run in by_run]


def records_behind(target: str, ledgers: Sequence[str]) -> list[Path]:
    """The records of the runs that wrote what `target` names.

    Raises:
        ValueError: nothing here is known under that name.
    """
    path = Path(target)
    if path.exists():
        beside = record_of(path)
        found = [beside] if beside else _records_of_runs(_embedded(path)) if path.is_file() else []
        if not found:
            raise ValueError(f"{target}: no run record beside it names it, and no run id in it is known here")
        return found
    claims = [claim for claim in _ledger_claims(ledgers) if claim["id"] == target]
    for claim in claims:
        if claim["evidence"] and (found := _records_of_runs(claim["evidence"]["runs"])):
            return found
    if found := [path for path, record in _records() if record["run"].startswith(target)]:
        return found
    if not claims:
        why = f"no such file, no run in {', '.join(PLACES)} has this name, and no claim of {' or '.join(ledgers)}"
    elif claims[0]["evidence"]:
        why = f"the runs that decided it are not in {', '.join(PLACES)}"
    else:
        why = f"{claims[0]['verdict']}, and no run is kept for it ({claims[0]['reason']})"
    if not claims and (names := _near(target, ledgers)):
        why += f"; did you mean {' or '.join(names)}?"
    raise ValueError(f"{target}: {why}" + (f"; its judge is {judge}" if (judge := _judge_of(target)) else ""))


def _near(target: str, ledgers: Sequence[str]) -> list[str]:
    """Figures, tables and claims that someone who typed `target` may have meant."""
    rendered = [
        str(path.parent / name)
        for path, record in _records()
        for name in record["outputs"]
        if record["stage"] in {"figure", "table"} and Path(name).stem == Path(target).stem and not name.endswith(".png")
    ]
    return rendered[:1] or get_close_matches(target, [claim["id"] for claim in _ledger_claims(ledgers)])


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
    rendered = [f"{_code(function)} {key}" for key, function in renderers.items() if key == record["settings"][name]]
    measured = [
        f"{os.path.relpath(file)}:{line} {function}"
        for file, line, function in (functions_used(STAGES[name].place, MEASURING) if name in STAGES else ())
    ]
    return ", ".join(rendered or measured)


def _judge_of(target: str) -> str:
    """File and line of the function that decides the claim of this name, if there is such a claim."""
    from recurformer.claims import all_claims

    return next((_code(claim.judge) for claim in all_claims() if claim.id == target and claim.judge), "")


def describe(path: Path, record: dict[str, Any], known: Mapping[str, dict[str, Any]]) -> str:
    """One run in a few lines: its command and its code, and the stages of the `known` runs that wrote its inputs."""
    commit = (record["git"]["commit"] or "unknown")[:12] + (", changed" if record["git"]["dirty"] else "")
    host, accelerator = record["host"], record["accelerator"]
    machine = f"{host['processor']}, {host['cores']} cores" + (f", {accelerator['name']}" if accelerator else "")
    parents = [known[run] for run in record["parents"] if run in known]
    code = {parent["stage"]: _calls(parent) for parent in parents}
    lines = [
        f"run {record['run']}  {record['stage']}  {record['started']}  {record['seconds']:,.1f} s",
        f"  record   {os.path.relpath(path)}",
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
        for path, record in _records()
        if runs.intersection(record["parents"])
        for name in record["outputs"]
    ]
    claims = [
        f"claim {claim['id']}: {claim['verdict']}"
        for claim in _ledger_claims(ledgers)
        if claim["evidence"] and runs.intersection(claim["evidence"]["runs"])
    ]
    return [*files, *claims]


@stage(
    "list the runs that made a figure, a table, a claim or a file",
    argument("target", help="file or folder, id of a claim (table4/llama2-7b/0.90/cs_10k), or id of a run"),
    argument("--ledger", nargs="+", default=LEDGERS, help=f"ledgers with claims (default: {' and '.join(LEDGERS)})"),
    argument("--direct", action="store_true", help="only the runs that wrote it, without the runs before them"),
)
def trace(args: Namespace) -> None:
    """List the runs that made a figure, table, measurement, claim or run: commands, seeds, commits, hardware, time."""
    places = records_behind(args.target, args.ledger)
    if not Path(args.target).exists() and (judge := _judge_of(args.target)):
        print(f"claim {args.target}\n  judge    {judge}\n")
    runs = {place: record for first in places for place, record in ancestors(first)}
    wrote = {place.resolve(): runs[place.resolve()] for place in places}
    known = {record["run"]: record for record in runs.values()}
    print("\n\n".join(describe(place, record, known) for place, record in (wrote if args.direct else runs).items()))
    if used := _used_by({record["run"] for record in wrote.values()}, args.ledger):
        print("\nused by\n" + "\n".join(f"  {line}" for line in used))
