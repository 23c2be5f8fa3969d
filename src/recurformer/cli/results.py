"""Stages that render measurements as tables and figures.

The stem of a measurement file's name is its kind.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from recurformer.cli.arguments import InputPath, OutputPath
from recurformer.cli.stage import argument, stage
from recurformer.files import atomic_path
from recurformer.records import PACK, cards_of, packed, runs_behind

if TYPE_CHECKING:
    import pandas as pd

    from recurformer.claims import Decision
    from recurformer.render.tables.measured import Recorded

MEASUREMENTS = argument(
    "measurements", type=InputPath, nargs="+", help="measurement files; the name of a file is its kind"
)


def _out(formats: str) -> Callable[..., object]:
    return argument(
        "--out", type=OutputPath, nargs="+", required=True, help=f"files to write; the suffix ({formats}) is the format"
    )


Rendered = TypeVar("Rendered")


def call_renderer(
    name: str, renderers: Mapping[str, Callable[..., Rendered]], files: Iterable[str | Path], **given: object
) -> Rendered:
    """Call a renderer with the measurements that it takes, and with what else is `given`.

    A parameter with a default is a kind that may be missing.

    Raises:
        ValueError: there is no such renderer, or the files hold other measurements than it takes.
    """
    if name not in renderers:
        raise ValueError(f"there is no {name!r}; there are: {', '.join(renderers)}")
    frames = read_measurements(files)
    parameters = signature(renderers[name]).parameters
    kinds = [kind for kind in parameters if kind not in given]
    needed = {kind for kind in kinds if parameters[kind].default is Parameter.empty}
    if not needed <= set(frames) <= set(kinds):
        raise ValueError(f"{name} is made from files named {', '.join(kinds)}; given: {', '.join(frames)}")
    return renderers[name](**frames, **{key: value for key, value in given.items() if key in parameters})


def read_measurements(files: Iterable[str | Path]) -> "dict[str, pd.DataFrame]":
    """One frame for each kind, the rows of all its files one below the other, each with the `run` that wrote it.

    Raises:
        ValueError: a file is unreadable or of an unknown format.
    """
    import pandas as pd

    from recurformer.render.measurements import read_frame

    frames: dict[str, list[pd.DataFrame]] = {}
    for file in map(Path, files):
        frame = read_frame(file)
        known = frame if "run" in frame else frame.assign(run=next(iter(runs_behind([file])), ""))
        frames.setdefault(file.stem, []).append(known)
    return {kind: pd.concat(parts, ignore_index=True) for kind, parts in frames.items()}


def _decisions(args: Namespace) -> "list[Decision]":
    """What the ledger says about this table's cells, from the table's own measurements and from recordings."""
    from recurformer.claims import THIS_STUDY, all_claims, make_ledger, read_evidence, read_recordings

    claims = [claim for claim in all_claims() if claim.id.startswith(f"{args.table}/")]
    recordings = read_recordings(args.recorded) if args.recorded else []
    ledger = make_ledger(args.study, [read_evidence(THIS_STUDY, args.measurements), *recordings], claims)
    return list(ledger.decisions)


def _recorded(folder: str | None) -> "Recorded":
    """What the recordings in a folder have of one card each, for tables that show it."""
    from recurformer.render.measurements import packed_frames
    from recurformer.render.tables.measured import KINDS

    found = {}
    for pack in sorted(Path(folder).glob(f"*/{PACK}")) if folder else []:
        cards = cards_of(packed(pack.parent).values())
        if len(cards) == 1:
            found[cards[0]] = {kind: rows for kind, rows in packed_frames(pack.parent).items() if kind in KINDS}
    return found


@stage(
    "render one table of the paper",
    argument("table", help="table1 … table5, reviewer_questions"),
    *(MEASUREMENTS, _out(".csv, .md, .tex, .html")),
    argument(
        "--recorded",
        help="folder of committed recordings: evidence for the verdicts, and further columns of tables 2 and 4",
    ),
    argument("--study", default="default", help="name of the study, for the footnote"),
)
def table(args: Namespace) -> None:
    """Render a table, of the paper or of its reviewers' questions, from measurement files."""
    from recurformer.claims.evidence import hardware_of, runs_of
    from recurformer.claims.questions import reviewer_questions
    from recurformer.claims.text import recordings
    from recurformer.render.tables import TABLES

    decisions = _decisions(args)
    verdicts = {decision.claim.id: decision.verdict for decision in decisions}
    recorded = _recorded(args.recorded)
    tables = {**TABLES, "reviewer_questions": reviewer_questions}
    rendered = call_renderer(args.table, tables, args.measurements, verdicts=verdicts, recorded=recorded)
    hardware = hardware_of(runs_of(args.measurements))
    rendered = rendered.measured_by(args.study, hardware, runs_behind(args.measurements))
    rendered = replace(rendered, notes=(*rendered.notes, *recordings(decisions)))
    for target in args.out:
        with atomic_path(target) as path:
            rendered.write(path)
        print(Path(target).name)


@stage(
    "render one figure of the paper",
    argument("figure", help="figure1 … figure6, ablation_pareto, …"),
    *(MEASUREMENTS, _out(".svg, .png")),
)
def figure(args: Namespace) -> None:
    """Render one figure, of the paper or of the ablations, from measurement files, as SVG or PNG."""
    from recurformer.render.figures import FIGURES
    from recurformer.render.style import save_figure

    drawn = call_renderer(args.figure, FIGURES, args.measurements)
    for target in args.out:
        with atomic_path(target) as path:
            save_figure(drawn, path, runs_behind(args.measurements))
        print(Path(target).name)
