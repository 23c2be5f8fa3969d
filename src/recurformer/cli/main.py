"""The `recurformer` command. The stages declare themselves and their needs."""

import gc
import io
import json
import os
import select
import signal
import sys
from argparse import Namespace
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import cast

from recurformer import __version__
from recurformer.cli.resumable import described, is_first, is_launched, launch, tell_launcher
from recurformer.cli.stage import STAGES, SUITE, InputPath, OutputFolder, OutputPath, Settings, Stage, flat, paths_of
from recurformer.files import refuse_strange_model
from recurformer.gpus import own_gpus, refuse_a_processor
from recurformer.records import read_record, run_record
from recurformer.study import Distributed

MODULES = "study adapt models prepare heads recover train measure caches render runs"
"""Modules of stages, in the order in which the command's help lists them."""
for _module in MODULES.split():
    import_module(f"recurformer.cli.{_module}")

MORE = "recurformer COMMAND --help describes a command."
OWN = {"recurformer.cli.adapt", "recurformer.cli.models"}  # their stages are for a user's own model
NOT_SETTINGS = {"record", "threads", "stage", "settings"}
EXPECTED = (ValueError, OSError, ArithmeticError, RuntimeError)
"""What stages raise of bad input: the message says all."""
BUSY = 0.5
"""Share of the cores in use, in the mean of a minute, above which a user is told."""


def _usage() -> str:
    width, lines = max(map(len, STAGES)), list[str]()
    for heading, own in (("your own model", True), ("studies, and the runs behind a number", False)):
        listed = {name: one.text for name, one in STAGES.items() if (one.function.__module__ in OWN) is own}
        lines += ["", f"{heading}:", *(f"  {name:<{width}}  {text}" for name, text in listed.items())]
    return "\n".join(["usage: recurformer COMMAND … | --help | --version", *lines, "", MORE])


def import_libraries() -> None:
    """Import torch and transformers without garbage collection among their many objects, now or at exit.

    This happens only in a fresh process: frozen objects are never collected, and a caller's own must not be among them.
    """
    if "transformers.modeling_utils" in sys.modules or not gc.isenabled():
        return
    gc.disable()
    try:
        import_module("transformers.modeling_utils")
        gc.freeze()
    finally:
        gc.enable()


def _refuse_places(args: Namespace) -> None:
    """Refuse, before any work, outputs that would delete something or could not be written."""
    inputs = [Path(path).resolve() for path in paths_of(args, InputPath)]
    outputs = paths_of(args, OutputPath)
    folders = {Path(place).resolve(): place for place in outputs if isinstance(place, OutputFolder)}
    above = {place: Path(place).resolve().parents for place in filter(None, (*outputs, args.record))}
    if states := getattr(args, "checkpoints", None):  # a folder, in which files are made before the end
        above[f"--checkpoints {states}"] = Path(states, "state").resolve().parents
    for place, parents in above.items():
        if folder := next((folder for path, folder in folders.items() if path in parents), None):
            raise ValueError(f"{place}: lies in {folder}, which this command writes; name another place")
    if args.record and Path(args.record).resolve() in {Path(place).resolve() for place in outputs}:
        raise ValueError(f"--record {args.record}: is an output of this command; name another file")
    if args.record and Path(args.record).exists():
        if Path(args.record).resolve() in inputs:
            raise ValueError(f"--record {args.record}: is an input of this command; name another file")
        read_record(args.record)  # nothing but an earlier record is replaced
    for place in outputs:
        if not isinstance(place, OutputFolder):
            if Path(place).is_dir():
                raise ValueError(f"{place}: is a folder; name a file")
        elif any(path.is_relative_to(Path(place).resolve()) for path in inputs):
            raise ValueError(f"{place}: holds an input of this command; name another folder to write")
        else:
            refuse_strange_model(place)


def take_settings(stage: Stage, args: Namespace) -> Settings:
    """The settings of a stage. `args.settings` becomes a text of one form: it identifies a training to be resumed."""
    settings = stage.settings(getattr(args, "settings", None))
    args.settings = json.dumps(flat(settings), sort_keys=True)
    return settings


def _run(stage: Stage, args: Namespace, argv: list[str]) -> None:
    _refuse_places(args)
    settings = take_settings(stage, args)
    processes = cast(Distributed, settings.get("distributed", Distributed())).processes
    if args.threads:
        # Before torch is imported, so that its OpenMP pool has this size from the start.
        os.environ["OMP_NUM_THREADS"] = str(max(1, args.threads // processes))
    elif stage.device == "computes" and stage.function.__module__ in OWN and "OMP_NUM_THREADS" not in os.environ:
        _say_if_busy()
    with own_gpus(processes * (stage.device == "computes")) if stage.device else nullcontext():
        if processes > 1 and not is_launched():
            launch(argv, processes)
        else:
            _run_recorded(stage, args, argv, settings)


def _say_if_busy() -> None:
    """Small operators of several threads wait for the slowest: beside other work they can take ten times as long."""
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    if busy >= BUSY * cores:
        print(
            f"the machine is busy: its load is {busy:.1f}, and it has {cores} cores. If this is slow, give --threads: "
            "as many as are free",
            file=sys.stderr,
        )


def _run_recorded(stage: Stage, args: Namespace, argv: list[str], settings: Settings) -> None:
    """The stage in this process, which writes the record unless another one of the same training does."""
    path = args.record if is_first() else None
    inputs, outputs = paths_of(args, InputPath), paths_of(args, OutputPath)
    named = {key: value for key, value in vars(args).items() if key not in NOT_SETTINGS and value is not None}
    with run_record(path, stage.name, argv, named | flat(settings), inputs=inputs, outputs=outputs) as record:
        if any(path.endswith(".parquet") for path in (*inputs, *outputs)):
            import_module("pyarrow")  # where it is not installed, this is said before any work
        if stage.device:
            import_libraries()
        if stage.device == "computes":
            refuse_a_processor()
        record["metrics"] = stage.run(args, settings)
        if path and "distributed" in settings:
            record["training"] = described(args, settings)


def _message(error: Exception) -> str:
    """An error in one line; for a file that the system refuses, its name and the reason; for a package that is not
    installed, the extra that brings it.
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package != __name__.partition(".")[0]:
            return f"needs the package {package}, which is not installed: {SUITE}"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    name, lines = type(error).__name__, str(error).splitlines()[:1]
    if isinstance(error, EXPECTED):
        return "".join(lines) or name
    return f"{': '.join([name, *lines])} (unexpected; with RECURFORMER_DEBUG=1 the command says where)"


def _independent_of_surroundings() -> None:
    """Neither the encoding of a terminal nor the notebook that started this process decides whether a stage works."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    os.environ.pop("MPLBACKEND", None)  # figures are drawn without one, but matplotlib's import fails if it is missing


def main(argv: list[str] | None = None) -> int:
    """Run one stage. Exit codes: 0 done, 1 refused or failed (one line on standard error), 2 wrong usage, 130 stopped
    by Ctrl-C, 141 nobody reads the output any more.
    """
    _independent_of_surroundings()
    argv = sys.argv[1:] if argv is None else argv
    try:
        try:
            return _main(argv)
        finally:  # also where the parser ends the process, behind its help
            sys.stdout.flush()
    except OSError as error:  # of standard output: _main has handled all others
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what the interpreter flushes when it ends
        if isinstance(error, BrokenPipeError):
            return 128 + signal.SIGPIPE
        print(f"recurformer: the output cannot be written ({error.strerror})", file=sys.stderr)
        return 1


def _is_unread() -> bool:
    """Whether the program that read the standard output is gone."""
    output = select.poll()
    output.register(1, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _main(argv: list[str]) -> int:
    if not argv or argv[0] in {"-h", "--help"}:
        print(_usage())
        return 0
    if argv[0] == "--version":
        print(f"recurformer {__version__}")
        return 0
    name, *rest = argv
    if name not in STAGES:
        print(f"recurformer: no command {name!r}; there are: {', '.join(STAGES)}", file=sys.stderr)
        return 2
    args = STAGES[name].parser().parse_args(rest)
    try:
        _run(STAGES[name], args, argv)
    except KeyboardInterrupt:
        if not is_launched():
            kept = "; the same command continues where it stopped" if "checkpoints" in args else ""
            print(f"\nrecurformer {name}: stopped{kept}", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            raise
        if os.environ.get("RECURFORMER_DEBUG"):
            raise
        if is_launched():
            tell_launcher(_message(error))
        else:
            print(f"recurformer {name}: {_message(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
