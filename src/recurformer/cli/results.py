"""Stages that render measurements as tables and figures.

The stem of a measurement file's name is its kind.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from recurformer.cli.arguments import InputPath, OutputPath
from recurformer.cli.stage import argument, stage
from recurformer.files import atomic_path
from recurformer.records import gpus_of, packed, runs_behind

if TYPE_CHECKING:
    import pandas as pd

MEASUREMENTS = argument(
    "measurements", type=InputPath, nargs="+", help="measurement files; the name of a file is its kind"
)


def _out(formats: str) -> Callable[..., object]:
    return argument(
        "--out", type=OutputPath, nargs="+", required=True, help=f"files to write; the suffix ({formats}) is the format"
    )


Rendered = TypeVar("Rendered")


def call_renderer(
    name: str, renderers: Mapping[str, Callable[..., Rendered]], frames: "Mapping[str, pd.DataFrame]", **given: object
) -> Rendered:
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
    from recurformer.claims import THIS_STUDY, all_claims, evidence_of, make_ledger, read_recordings
    from recurformer.claims.ledger import from_recordings, reviewer_questions
    from recurformer.claims.runs import hardware_of, runs_beneath
    from recurformer.render.tables import TABLES
    from recurformer.render.tables_methods import GPU_KINDS
    from recurformer.render.tables_studies import questions_table
    from recurformer.results.frames import packed_frames, read_frames, recordings

    frames = read_frames(args.measurements)
    claims = [claim for claim in all_claims() if claim.id.startswith(f"{args.table}/")]
    evidence = [evidence_of(THIS_STUDY, frames), *read_recordings(args.recorded, frames)] if claims else []
    decisions = make_ledger(args.study, evidence, claims).decisions
    gpus = {pack: gpus_of(packed(pack).values()) for pack in recordings(args.recorded)}
    renderers: dict[str, Callable[..., Any]] = {**TABLES, "reviewer_questions": reviewer_questions}
    rendered = call_renderer(
        args.table,
        renderers,
        frames,
        verdicts={decision.claim.id: decision.verdict for decision in decisions},
        recorded={names[0]: packed_frames(pack, GPU_KINDS) for pack, names in gpus.items() if len(names) == 1},
    )
    if args.table == "reviewer_questions":
        rendered = questions_table(rendered)
    hardware = hardware_of(runs_beneath(args.measurements))
    rendered = rendered.measured_by(args.study, hardware, runs_behind(args.measurements))
    rendered = replace(rendered, notes=(*rendered.notes, *from_recordings(decisions)))
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
    from recurformer.results.frames import read_frames

    drawn = call_renderer(args.figure, FIGURES, read_frames(args.measurements))
    for target in args.out:
        with atomic_path(target) as path:
            save_figure(drawn, path, runs_behind(args.measurements))
        print(Path(target).name)
