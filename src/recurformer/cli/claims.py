"""Decide every claim of the paper by the given measurements, and write the ledger: JSON, CSV, Markdown, HTML."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recurformer.cli.arguments import InputPath, OutputPath
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
    from recurformer.claims.text import markdown

    return markdown(ledger)


def _html(ledger: "Ledger") -> str:
    from recurformer.render.page.claims import claims_page

    return claims_page(ledger.to_dict())


FORMATS: dict[str, Callable[["Ledger"], str]] = {
    ".json": lambda ledger: json.dumps(ledger.to_dict(), indent=1, ensure_ascii=False) + "\n",
    ".csv": lambda ledger: ledger.frame().to_csv(index=False),
    ".md": _markdown,
    ".html": _html,
}


def _decide(args: Namespace) -> dict[str, int]:
    from recurformer.claims import THIS_STUDY, make_ledger, read_evidence, read_recordings

    recordings = read_recordings(args.recorded) if args.recorded else []
    ledger = make_ledger(args.study, [read_evidence(THIS_STUDY, args.measurements), *recordings])
    for target in args.out:
        if Path(target).suffix not in FORMATS:
            raise ValueError(f"{target}: a ledger is written as {', '.join(FORMATS)}")
    for target in args.out:
        with atomic_path(target) as path:
            path.write_text(FORMATS[path.suffix](ledger), encoding="utf-8")
    return ledger.counts()


def read_ledger(path: str) -> dict[str, Any]:
    """A ledger that `recurformer claims` wrote: counts (verdict -> claims), claims (each with id, verdict, evidence).

    Raises:
        ValueError: there is none, or the file is something else.
    """
    try:
        ledger = json.loads(Path(path).read_text(encoding="utf-8"))
        if all(isinstance(count, int) for count in ledger["counts"].values()):
            [(claim["id"], claim["verdict"], claim["evidence"]) for claim in ledger["claims"]]
            return ledger
    except OSError:
        raise ValueError(f"{path}: no ledger there; `snakemake --cores 2 {path}` makes it") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ValueError(f"{path}: not a ledger written by `recurformer claims`")


def run(args: Namespace) -> dict[str, int]:
    """Decide, or count, and show the verdicts; the number of claims of each."""
    from recurformer.render.verdicts import MARKS

    if unknown := [name for name in args.fail_on if name not in MARKS]:
        raise ValueError(f"--fail-on {unknown[0]}: no such verdict; there are: {', '.join(MARKS)}")
    counts = _decide(args) if args.measurements else read_ledger(args.ledger)["counts"]
    if failures := [f"{counts[name]} {name}" for name in args.fail_on if counts[name]]:
        raise ValueError(f"--fail-on: {', '.join(failures)}")
    return counts
