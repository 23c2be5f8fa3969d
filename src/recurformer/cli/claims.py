"""Stages of the ledger: decide every claim by the given measurements, and compare two ledgers."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurformer.cli.arguments import InputPath, OutputPath
from recurformer.cli.stage import argument, stage
from recurformer.files import atomic_path

if TYPE_CHECKING:
    from recurformer.claims import Ledger

LEDGER = "results/claims.json"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "measurements",
        type=InputPath,
        nargs="*",
        help=f"measurement files; without any, the command counts the verdicts of {LEDGER}",
    )
    parser.add_argument("--recorded", help="folder of committed recordings, as further evidence")
    parser.add_argument("--study", default="default", help="name of the study")
    parser.add_argument("--out", type=OutputPath, nargs="*", default=[], help=f"files to write ({', '.join(FORMATS)})")
    parser.add_argument("--ledger", default=LEDGER, help="the ledger to count when no measurements are given")
    parser.add_argument(
        "--fail-on", nargs="+", default=[], help="verdicts that no claim of the paper may have (exit code 1)"
    )


def _markdown(ledger: "Ledger") -> str:
    from recurformer.claims.ledger import from_recordings
    from recurformer.render.page import claims_markdown

    return claims_markdown(ledger.to_dict(), from_recordings(ledger.decisions))


def _html(ledger: "Ledger") -> str:
    from recurformer.render.page import claims_page

    return claims_page(ledger.to_dict())


FORMATS: dict[str, Callable[["Ledger"], str]] = {
    ".json": lambda ledger: json.dumps(ledger.to_dict(), indent=1, ensure_ascii=False) + "\n",
    ".csv": lambda ledger: ledger.frame().to_csv(index=False),
    ".md": _markdown,
    ".html": _html,
}


def _decide(args: Namespace) -> dict[str, int]:
    from recurformer.claims import THIS_STUDY, evidence_of, make_ledger, read_recordings
    from recurformer.results.frames import read_frames

    study = evidence_of(THIS_STUDY, read_frames(args.measurements))
    ledger = make_ledger(args.study, [study, *read_recordings(args.recorded)])
    for target in args.out:
        if Path(target).suffix not in FORMATS:
            raise ValueError(f"{target}: a ledger is written as {', '.join(FORMATS)}")
    for target in args.out:
        with atomic_path(target) as path:
            path.write_text(FORMATS[path.suffix](ledger), encoding="utf-8")
    return ledger.counts()


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
        raise ValueError(f"{path}: no ledger there; `snakemake --cores 2 {path}` makes it") from None
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{path}: not a ledger written by `recurformer claims`")


@stage("decide every claim of the paper by the given measurements", add_arguments, name="claims")
def run(args: Namespace) -> dict[str, int]:
    """Decide, or count, and show the verdicts; the number of claims of each."""
    from recurformer.results.words import MARKS

    if unknown := [name for name in args.fail_on if name not in MARKS]:
        raise ValueError(f"--fail-on {unknown[0]}: no such verdict; there are: {', '.join(MARKS)}")
    counts = _decide(args) if args.measurements else read_ledger(args.ledger)["counts"]
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

    recorded, results = _claims_of(args.recorded), _claims_of(args.results)
    common = [(claim, results[name]) for name, claim in recorded.items() if name in results]
    if not common:
        raise ValueError(f"{args.recorded} and {args.results} have no claim in common: nothing can be compared")
    verdicts = [before["id"] for before, after in common if before["verdict"] != after["verdict"]]
    numbers = [before["id"] for before, after in common if before["ours"] != after["ours"]]
    print(f"{len(common)} claims compared: {len(verdicts)} have another verdict, {len(numbers)} other numbers.")
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
