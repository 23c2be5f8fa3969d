"""Stages that render and judge measurements: tables, figures, the ledger of claims, and the comparison of two ledgers.

The stem of a measurement file's name is its kind.
"""

import json
import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import Parameter, signature
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurformer.cli.stage import Argument, InputPath, OutputPath, argument, stage
from recurformer.files import atomic_path
from recurformer.records import gpus_of, packed, read_record, record_of, runs_behind

if TYPE_CHECKING:
    import pandas as pd

MEASUREMENTS = argument(
    "measurements", type=InputPath, nargs="+", help="measurement files; the name of a file is its kind"
)


def _out(formats: str) -> Argument:
    return argument(
        "--out", type=OutputPath, nargs="+", required=True, help=f"files to write; the suffix ({formats}) is the format"
    )


def call_renderer(
    name: str, renderers: Mapping[str, Callable[..., Any]], frames: "Mapping[str, pd.DataFrame]", **given: object
) -> Any:
    """Call a renderer with the measurements that it takes, and with what else is `given`.

    A parameter with a default is a kind that may be missing.

    Raises:
        ValueError: there is no such renderer, or these are other measurements than it takes.
    """
    from recurformer.results.frames import COMPARED

    if name not in renderers:
        raise ValueError(f"there is no {name!r}; there are: {', '.join(renderers)}")
    parameters = signature(renderers[name]).parameters
    kinds = {COMPARED.get(kind, kind): kind for kind in parameters if kind not in given}
    needed = {file for file, kind in kinds.items() if parameters[kind].default is Parameter.empty}
    if not needed <= set(frames) <= set(kinds):
        raise ValueError(f"{name} is made from files named {', '.join(kinds)}; given: {', '.join(frames)}")
    taken = {kinds[file]: frame for file, frame in frames.items()}
    return renderers[name](**taken, **{key: value for key, value in given.items() if key in parameters})


def _runs_of(files: list[str], frames: "Mapping[str, pd.DataFrame]") -> list[str]:
    """The runs that wrote some files, or else their rows, which a recording names; in an order that no order of files
    changes.
    """
    return sorted(runs_behind(files) or {run for rows in frames.values() for run in rows["run"] if run})


def _records_of(files: list[str]) -> dict[str, dict[str, Any]]:
    """The records of the runs that wrote some files or, of a recording's, their rows, by their ids."""
    beside = map(read_record, filter(None, map(record_of, files)))
    kept = (record for file in files for folder in Path(file).parents for record in packed(folder).values())
    return {record["run"]: record for record in chain(kept, beside)}


def _of_changed_trees(files: list[str]) -> list[str]:
    """A note on code that differed from its commit, if any did: each kind of measurement with the folders of the files
    that it wrote, below the folders that all files share.
    """
    from recurformer.results.words import CHANGED

    shared = Path(os.path.commonpath([Path(file).parent for file in files]))
    folders: dict[str, list[str]] = {}
    for file in map(Path, files):
        if (record := record_of(file)) and read_record(record)["git"]["dirty"]:
            folders.setdefault(file.stem, []).append(str(file.parent.relative_to(shared)))
    of_kinds = [f"{kind}: {', '.join(sorted(places))}" for kind, places in sorted(folders.items())]
    return [f"{CHANGED} {'; '.join(of_kinds)}."] if of_kinds else []


@stage(
    "render one table of the paper",
    argument("table", help="table1 … table5, lm_eval, recovery, long_inputs, reviewer_questions"),
    MEASUREMENTS,
    argument(
        "--recorded",
        help="folder of committed recordings: evidence for the verdicts, and further columns of tables 2 and 4",
    ),
    argument("--study", default="default", help="name of the study, for the footnote"),
    _out(".csv, .md, .tex, .html"),
)
def table(args: Namespace) -> None:
    """Render a table, of the paper or of its reviewers' questions, from measurement files."""
    from recurformer.claims import ledger
    from recurformer.claims.evidence import THIS_STUDY, evidence_of, read_recordings
    from recurformer.render.tables import TABLES
    from recurformer.render.tables_methods import GPU_KINDS
    from recurformer.render.tables_studies import questions_table
    from recurformer.results.frames import packed_frames, read_frames, recordings
    from recurformer.results.words import BORROWED, Verdict

    frames = read_frames(args.measurements)
    claims = [claim for claim in ledger.all_claims() if claim.id.startswith(f"{args.table}/")]
    of_reviewers = args.table == "reviewer_questions"
    evidence = [evidence_of(THIS_STUDY, frames), *read_recordings(args.recorded, frames)] if claims else []
    decisions = ledger.make_ledger(args.study, evidence, claims).decisions
    gpus = {pack: gpus_of(packed(pack).values()) for pack in recordings(args.recorded)}
    rendered = call_renderer(
        args.table,
        {**TABLES, "reviewer_questions": ledger.reviewer_questions},
        frames,
        verdicts={decision.claim.id: Verdict(decision.verdict, *decision.borrowed) for decision in decisions},
        recordings=read_recordings(args.recorded) if of_reviewers else [],
        recorded={names[0]: packed_frames(pack, GPU_KINDS) for pack, names in gpus.items() if len(names) == 1},
    )
    if of_reviewers:
        rendered = questions_table(rendered)
    hardware = ledger.hardware_of(ledger.runs_beneath(args.measurements))
    rendered = rendered.measured_by(args.study, hardware, _runs_of(args.measurements, frames))
    if taken := ledger.from_recordings(decisions):
        rendered = replace(rendered, notes=(*rendered.notes, BORROWED, *taken))
    rendered = replace(rendered, notes=(*rendered.notes, *_of_changed_trees(args.measurements)))
    for target in args.out:
        with atomic_path(target) as path:
            rendered.write(path)
        print(target)


@stage(
    "render one figure of the paper",
    argument("figure", help="figure1 … figure6, ablation_pareto, …"),
    *(MEASUREMENTS, _out(".svg, .png")),
)
def figure(args: Namespace) -> None:
    """Render one figure, of the paper or of the ablations, from measurement files, as SVG or PNG."""
    from recurformer.render.figures import FIGURES
    from recurformer.render.style import add_note, save_figure
    from recurformer.results.frames import read_frames

    frames = read_frames(args.measurements)
    drawn = call_renderer(args.figure, FIGURES, frames, records=_records_of(args.measurements))
    for note in _of_changed_trees(args.measurements):
        add_note(drawn, note)
    for target in args.out:
        with atomic_path(target) as path:
            save_figure(drawn, path, _runs_of(args.measurements, frames))
        print(target)


LEDGER = "results/claims.json"


def read_ledger(path: str) -> dict[str, Any]:
    """A ledger that `recurformer claims` wrote: counts (verdict -> claims) and claims, each with id, verdict, ours,
    reason and evidence, which is none or names its runs.

    Raises:
        ValueError: there is none, or the file is something else.
    """
    from recurformer.results.words import MARKS

    try:
        ledger = json.loads(Path(path).read_text(encoding="utf-8"))
        texts = [claim[key] for claim in ledger["claims"] for key in ("id", "verdict", "ours", "reason")]
        texts += [run for claim in ledger["claims"] if claim["evidence"] for run in claim["evidence"]["runs"]]
        if all(isinstance(text, str) for text in texts) and all(isinstance(ledger["counts"][v], int) for v in MARKS):
            return ledger
    except OSError:
        has_none = any(map(packed, Path(path).parents)) and "this recording has none"
        raise ValueError(f"{path}: no ledger there; {has_none or f'`snakemake --cores 2 {path}` makes it'}") from None
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{path}: not a ledger written by `recurformer claims`")


@stage(
    "decide every claim of the paper by the given measurements",
    argument(
        "measurements",
        type=InputPath,
        nargs="*",
        help=f"measurement files; without any, the command counts the verdicts of {LEDGER}",
    ),
    argument("--recorded", help="folder of committed recordings, as further evidence"),
    argument("--study", default="default", help="name of the study"),
    argument("--out", type=OutputPath, nargs="*", default=[], help="files to write (.json, .csv, .md, .html)"),
    argument("--ledger", default=LEDGER, help="the ledger to count when no measurements are given"),
    argument("--fail-on", nargs="+", default=[], help="verdicts that no claim of the paper may have (exit code 1)"),
)
def claims(args: Namespace) -> dict[str, int]:
    """Decide, or count, and show the verdicts; the number of claims of each."""
    from recurformer.claims.evidence import THIS_STUDY, evidence_of, read_recordings
    from recurformer.claims.ledger import REVIEWER, from_recordings, make_ledger
    from recurformer.render.page import claims_markdown, claims_page
    from recurformer.results.frames import read_frames
    from recurformer.results.words import MARKS

    if unknown := [name for name in args.fail_on if name not in MARKS]:
        raise ValueError(f"--fail-on {unknown[0]}: no such verdict; there are: {', '.join(MARKS)}")
    if not args.measurements:
        counts = read_ledger(args.ledger)["counts"]
    else:
        study = evidence_of(THIS_STUDY, read_frames(args.measurements))
        ledger = make_ledger(args.study, [study, *read_recordings(args.recorded)])
        papers = [decision for decision in ledger.decisions if decision.claim.kind != REVIEWER]
        formats: dict[str, Callable[[], str]] = {
            ".json": lambda: json.dumps(ledger.to_dict(), indent=1, ensure_ascii=False) + "\n",
            ".csv": lambda: ledger.frame().to_csv(index=False),
            ".md": lambda: claims_markdown(ledger.to_dict(), from_recordings(papers)),
            ".html": lambda: claims_page(ledger.to_dict()),
        }
        if wrong := [target for target in args.out if Path(target).suffix not in formats]:
            raise ValueError(f"{wrong[0]}: a ledger is written as {', '.join(formats)}")
        for target in args.out:
            with atomic_path(target) as path:
                path.write_text(formats[path.suffix](), encoding="utf-8")
        counts = ledger.counts()
        if taken := [f"{count} {verdict}" for verdict, count in ledger.counts(borrowed=True).items() if count]:
            own = sum(decision.is_own for decision in papers)
            print(f"taken from recordings: {', '.join(taken)}; {own} rest on this study's measurements; together:")
    if failures := [f"{counts[name]} {name}" for name in args.fail_on if counts[name]]:
        raise ValueError(f"--fail-on: {', '.join(failures)}")
    return counts


def _claims_of(place: str) -> dict[str, dict[str, Any]]:
    """Id -> claim of a ledger, or of the ledger in a folder."""
    path = Path(place)
    if not path.exists():
        raise ValueError(f"{place}: no such folder or ledger to compare")
    return {claim["id"]: claim for claim in read_ledger(str(path / "claims.json" if path.is_dir() else path))["claims"]}


@stage(
    "compare the verdicts and the numbers of two ledgers",
    argument("recorded", help="results of the reference run: a folder with claims.json, or this file"),
    argument("results", help="results of the run to compare, likewise"),
)
def compare(args: Namespace) -> None:
    """Compare two ledgers, claim by claim."""
    from tabulate import tabulate

    from recurformer.claims.evidence import THIS_STUDY

    recorded, results = _claims_of(args.recorded), _claims_of(args.results)
    common = [(claim, results[name]) for name, claim in recorded.items() if name in results]
    if not common:
        raise ValueError(f"{args.recorded} and {args.results} have no claim in common: nothing can be compared")
    verdicts = [before["id"] for before, after in common if before["verdict"] != after["verdict"]]
    numbers = [before["id"] for before, after in common if before["ours"] != after["ours"]]
    both = [(before, after) for before, after in common if before["ours"] and after["ours"]]
    taken = [after for _, after in both if after["evidence"]["source"] != THIS_STUDY]
    own = [before["ours"] == after["ours"] for before, after in both if after not in taken]
    first = sum(bool(before["ours"] and not after["ours"]) for before, after in common)
    print(f"{len(common)} claims compared: {len(verdicts)} have another verdict.")
    print(
        f"{args.results} measured {len(own)} of the numbers in {args.recorded} itself: {own.count(False)} are others."
        f" {len(taken)} it takes from recordings, which is no comparison, and {first} it lacks."
    )
    for place, claims, others in ((args.recorded, recorded, results), (args.results, results, recorded)):
        if only := [name for name in claims if name not in others]:
            print(f"\nOnly in {place} ({len(only)}): {', '.join(only)}")
    rows = [
        [before["id"], *(claim[key] for key in ("verdict", "ours") for claim in (before, after))]
        for before, after in common
        if before["id"] in {*verdicts, *numbers}
    ]
    if rows:
        headings = ["claim", "verdict, recorded", "verdict", "ours, recorded", "ours"]
        print("\n" + tabulate(rows, headings, tablefmt="pipe", disable_numparse=True))
