"""Render a table, of the paper or of its reviewers' questions, from measurement files: CSV, Markdown, LaTeX, HTML."""

from argparse import ArgumentParser, Namespace
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from recurformer.cli.arguments import InputPath, OutputPath
from recurformer.cli.measurements import call_renderer, read_measurements
from recurformer.files import atomic_path
from recurformer.records import cards_of, read_record, runs_behind

if TYPE_CHECKING:
    from recurformer.claims import Decision
    from recurformer.render.tables.measured import Recorded


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("table", help="table1 … table5, reviewer_questions")
    parser.add_argument(
        "measurements", type=InputPath, nargs="+", help="measurement files; the name of a file says what it holds"
    )
    parser.add_argument(
        "--out",
        type=OutputPath,
        nargs="+",
        required=True,
        help="files to write; the suffix (.csv, .md, .tex, .html) is the format",
    )
    parser.add_argument(
        "--recorded",
        help="folder of committed recordings, which count as evidence for the verdicts; tables 2 and 4 show theirs",
    )
    parser.add_argument("--study", default="default", help="name of the study, for the footnote")


def _decisions(args: Namespace) -> "list[Decision]":
    """What the ledger says about this table's cells, from the table's own measurements and from recordings."""
    from recurformer.claims import THIS_STUDY, all_claims, make_ledger, read_evidence, read_recordings

    claims = [claim for claim in all_claims() if claim.id.startswith(f"{args.table}/")]
    recordings = read_recordings(args.recorded) if args.recorded else []
    ledger = make_ledger(args.study, [read_evidence(THIS_STUDY, args.measurements), *recordings], claims)
    return list(ledger.decisions)


def _recorded(folder: str | None) -> "Recorded":
    """What the recordings in a folder have of one card each, for tables that show it."""
    from recurformer.render.tables.measured import KINDS

    found = {}
    for results in sorted(Path(folder).glob("*/results")) if folder else []:
        cards = cards_of(map(read_record, sorted(results.rglob("*run.json"))))
        if len(cards) == 1:
            files = [file for kind in KINDS for file in sorted(results.rglob(f"{kind}.csv"))]
            found[cards[0]] = read_measurements(files)
    return found


def run(args: Namespace) -> None:
    from recurformer.claims import THIS_STUDY
    from recurformer.claims.evidence import hardware_of, runs_of
    from recurformer.claims.questions import reviewer_questions
    from recurformer.render.tables import TABLES

    decisions = _decisions(args)
    verdicts = {decision.claim.id: decision.verdict for decision in decisions}
    recorded = _recorded(args.recorded)
    tables = {**TABLES, "reviewer_questions": reviewer_questions}
    table = call_renderer(args.table, tables, args.measurements, verdicts=verdicts, recorded=recorded)
    hardware = hardware_of(runs_of(args.measurements))
    table = table.measured_by(args.study, hardware, runs_behind(args.measurements))
    elsewhere = Counter(d.evidence.source for d in decisions if d.evidence and d.evidence.source != THIS_STUDY)
    notes = [f"{count} verdicts rest on {source}, not on this study." for source, count in elsewhere.items()]
    table = replace(table, notes=(*table.notes, *notes))
    for target in args.out:
        with atomic_path(target) as path:
            table.write(path)
        print(Path(target).name)
