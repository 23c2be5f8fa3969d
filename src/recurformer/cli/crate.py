"""Pack a finished run into a Workflow Run RO-Crate: one zip archive with a machine-readable account of the run.

The account (ro-crate-metadata.json) may name only files at or below its own folder, while a study lies in several
folders of the project: results, figures, configuration, workflow. So the crate's root is the project's folder, and the
archive holds the described part of it under the same paths: measurements, records, tables, figures and what made them,
no weights and no text under others' licences. Unpacked over a clone of the project, everything is in its place. As a
file in the project's folder the account of one study would overwrite that of another.

It is written without a library: `rocrate` (PyPI) has no words for runs and stamps the clock into what it writes. The
same run gives the same bytes.
"""

import json
import os
import zipfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import yaml

from recurformer.cli.arguments import InputPath, OutputPath
from recurformer.cli.keep import study_files
from recurformer.cli.study import read_study
from recurformer.files import atomic_path

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip archive can hold."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("results", type=InputPath, help="folder of measurements and tables")
    parser.add_argument("figures", type=InputPath, help="folder of figures")
    parser.add_argument("archive", type=OutputPath, help="archive to write (.zip)")
    parser.add_argument("--workflow", type=InputPath, default="Snakefile", help="the workflow's main file")
    parser.add_argument("--configfile", type=InputPath, required=True, help="the study (YAML)")
    parser.add_argument("--citation", type=InputPath, default="CITATION.cff", help="authors, licence and paper")
    parser.add_argument("--parts", type=InputPath, nargs="*", default=[], help="other files of the workflow to pack")


def _inside(path: str | Path) -> PurePosixPath:
    """`path` as the crate names it, relative to the present folder.

    Raises:
        ValueError: it lies elsewhere.
    """
    place = PurePosixPath(os.path.relpath(path))
    if place.is_relative_to(".."):
        raise ValueError(f"{path}: outside of this folder, which is the root of the crate")
    return place


def _pack(archive: str, contents: Mapping[PurePosixPath, bytes]) -> None:
    with atomic_path(archive) as scratch, zipfile.ZipFile(scratch, "w") as target:
        for place in sorted(contents):
            entry = zipfile.ZipInfo(str(place), EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            target.writestr(entry, contents[place])


def run(args: Namespace) -> None:
    from recurformer.crate import METADATA, Study, describe, find_runs

    kept = [_inside(file) for file in study_files(args.results, args.figures).values()]
    runs = find_runs(kept, without=args.stage)
    named = {place for run in runs for place in (run.place, run.benchmark, *run.outputs)}
    study = Study(
        name=read_study(args.configfile).study,
        workflow=_inside(args.workflow),
        config=_inside(args.configfile),
        parts=[_inside(path) for path in (args.citation, *args.parts)],
        citation=yaml.safe_load(Path(args.citation).read_text()),
    )
    places = [*named.intersection(kept), study.workflow, study.config, *study.parts]
    contents = {place: Path(place).read_bytes() for place in places}
    metadata = json.dumps(describe(study, runs, contents), indent=1, ensure_ascii=False) + "\n"
    _pack(args.archive, contents | {PurePosixPath(METADATA): metadata.encode()})
    print(f"{len(runs)} runs, {len(contents)} files")
