"""The runs behind a figure, a table, a measurement, a claim or a run id: commands, seeds, commits, hardware, time."""

import json
import os
import re
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recurformer.records import ancestors, read_record, record_of

PLACES = ("results", "figures", "recorded")
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("target", help="file or folder, id of a claim (table4/llama2-7b/0.90/cs_10k), or id of a run")
    parser.add_argument("--ledger", default="results/claims.json", help="ledger that knows the claims")
    parser.add_argument("--direct", action="store_true", help="only the runs that wrote it, not those before them")


def _records(places: tuple[str, ...] = PLACES) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every readable record of this folder's studies and recordings."""
    for place in places:
        for path in sorted(Path(place).rglob("*run.json")):
            try:
                yield path, read_record(path)
            except ValueError:
                continue


def _embedded(path: Path) -> list[str]:
    """The run ids that a figure or table carries in itself."""
    text = path.read_bytes().decode("latin-1")
    return list(dict.fromkeys(match.group() for match in RUN_ID.finditer(text)))


def _ledger_claims(path: str) -> list[dict[str, Any]]:
    return json.loads(Path(path).read_text(encoding="utf-8"))["claims"] if Path(path).is_file() else []


def _records_of_runs(runs: list[str]) -> list[Path]:
    by_run = {record["run"]: path for path, record in _records()}
    return [by_run[run] for run in runs if run in by_run]


def find_records(target: str, ledger: str) -> list[Path]:
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
    for claim in _ledger_claims(ledger):
        if claim["id"] == target:
            if claim["evidence"] is None:
                raise ValueError(f"{target}: {claim['verdict']}, no run is behind it ({claim['reason']})")
            return _records_of_runs(claim["evidence"]["runs"])
    if found := [path for path, record in _records() if record["run"].startswith(target)]:
        return found
    claims = f"no claim of {ledger}" if Path(ledger).is_file() else f"{ledger} is not there (--ledger names another)"
    raise ValueError(f"{target}: no such file, no run in {', '.join(PLACES)} has this name, and {claims}")


def describe(path: Path, record: dict[str, Any], known: set[str]) -> str:
    """One run in a few lines; of inputs whose runs are not `known`, which runs these were."""
    commit = (record["git"]["commit"] or "unknown")[:12] + (", changed" if record["git"]["dirty"] else "")
    host, accelerator = record["host"], record["accelerator"]
    machine = f"{host['processor']}, {host['cores']} cores" + (f", {accelerator['name']}" if accelerator else "")
    lines = [
        f"run {record['run']}  {record['stage']}  {record['started']}  {record['seconds']:,.1f} s",
        f"  record   {os.path.relpath(path)}",
        f"  command  {shlex.join(record['argv'])}",
        f"  seed     {record['seed']}" if record["seed"] is not None else "",
        f"  commit   {commit}",
        f"  machine  {machine}, peak {record['peak_memory_bytes'] / 2**20:,.0f} MiB",
        *(
            f"  lost     {file['path']} came from run {file['run']}, whose record has been replaced"
            for file in record["inputs"]
            if file["run"] and file["run"] not in known
        ),
    ]
    return "\n".join(filter(None, lines))


def _used_by(runs: set[str], ledger: str) -> list[str]:
    """What rests on these runs: files written by runs that read theirs, and claims that they decide."""
    files = [
        str(path.parent / name)
        for path, record in _records()
        if runs.intersection(record["parents"])
        for name in record["outputs"]
    ]
    claims = [
        f"claim {claim['id']}: {claim['verdict']}"
        for claim in _ledger_claims(ledger)
        if claim["evidence"] and runs.intersection(claim["evidence"]["runs"])
    ]
    return [*files, *claims]


def run(args: Namespace) -> None:
    places = find_records(args.target, args.ledger)
    chain = {place: record for first in places for place, record in ancestors(first)}
    wrote = {place.resolve(): chain[place.resolve()] for place in places}
    known = {record["run"] for record in chain.values()}
    print("\n\n".join(describe(place, record, known) for place, record in (wrote if args.direct else chain).items()))
    if used := _used_by({record["run"] for record in wrote.values()}, args.ledger):
        print("\nused by\n" + "\n".join(f"  {line}" for line in used))
