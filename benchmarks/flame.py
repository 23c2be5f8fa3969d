"""Where the stages of a study spend their time: py-spy samples every process that a command starts.

    python -m benchmarks.flame -- snakemake all --cores all
    python -m benchmarks.flame  # what the last command did, once more

A sample is inside an operator when native code of torch, of its thread pool or of the package's kernels runs on top of
the Python frame, or torch's Python that stands for an operator on the meta device; at the start or the end when it
imports a module or no stage runs; else between operators. What is sampled is the main thread's wall time: waiting for a
disk or for another process counts as between. A process is held for the moment of each sample, so a sampled study's own
times are no measurement; and one too short to be met is missed.
"""

import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pandas as pd

from recurformer.files import atomic_path

OPERATOR, PROCESS, BETWEEN = "operators", "start and end", "between operators"
SHOWN = 12
_NATIVE = re.compile(r"\.so[\w.]*\)$|\(\?\)$")
_TORCH = re.compile(r"\((libtorch(?!_python)|libc10|libgomp|libmkl|mamba-)")
_META = re.compile(r"\(torch/_(refs|prims|prims_common|decomp|meta_registrations)\b")
_STAGE = re.compile(r"run \(recurformer/cli/stage\.py:\d+\);(\w+) \(recurformer/cli/\w+\.py:\d+\)")
_MAIN_THREAD = re.compile(r".*process (\d+):.*?;thread \(\1\)[^;]*;(.*) (\d+)")
"""The process's own entry follows those of its ancestors; its main thread has its number."""
_IMPORT = "_find_and_load ("
_LINE = re.compile(r":\d+\)$")


class Sample(NamedTuple):
    """One stack of a main thread, and how often it was seen."""

    process: int
    stage: str | None
    kind: str
    top: str
    seen: int


def _native_top(frames: Sequence[str]) -> list[str]:
    """The native frames above the last Python frame, innermost first."""
    top = []
    for frame in reversed(frames):
        if not _NATIVE.search(frame):
            break
        top.append(frame)
    return top


def _kind(frames: Sequence[str], native: Sequence[str], stage: str | None) -> str:
    if stage is None or any(frame.startswith(_IMPORT) for frame in frames):
        return PROCESS
    operator = any(map(_TORCH.search, native)) or any(map(_META.search, frames))
    return OPERATOR if operator else BETWEEN


def samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Read py-spy's folded stacks, `process 1:"…";process 2:"…";thread (2): Main;outer (a.py:1);inner (b.py:2) 3`.

    A command that spans lines is written as it is: those before the last belong to it, and match nothing.
    """
    for line in lines:
        if not (found := _MAIN_THREAD.match(line)):
            continue
        frames = found[2].split(";")
        stage = match[1].replace("_", "-") if (match := _STAGE.search(found[2])) else None
        native = _native_top(frames)
        python = [_LINE.sub(")", frame) for frame in frames[: len(frames) - len(native)]][-2:]
        yield Sample(int(found[1]), stage, _kind(frames, native, stage), " > ".join(python), int(found[3]))


def by_stage(found: pd.DataFrame, rate: int) -> pd.DataFrame:
    """Seconds of each stage by kind, and the share between operators once the process has started.

    Args:
        found: one row a `Sample`; processes that never ran a stage are left out.
        rate: samples per second.
    """
    stage_of = found.dropna(subset="stage").groupby("process").stage.first()
    staged = found.assign(stage=found.process.map(stage_of)).dropna(subset="stage")
    seconds = staged.pivot_table(index="stage", columns="kind", values="seen", aggfunc="sum", fill_value=0) / rate
    seconds = seconds.reindex(columns=[OPERATOR, BETWEEN, PROCESS], fill_value=0.0)
    running = seconds[OPERATOR] + seconds[BETWEEN]
    seconds.insert(0, "processes", staged.groupby("stage").process.nunique())
    seconds["share between"] = seconds[BETWEEN] / running
    seconds["share outside operators"] = 1 - seconds[OPERATOR] / (running + seconds[PROCESS])
    return seconds.sort_values(BETWEEN, ascending=False)


def rows_between(found: pd.DataFrame, rate: int) -> pd.DataFrame:
    """The code between operators that takes most of each stage, as its last two Python frames."""
    between = found[found.kind == BETWEEN]
    seconds = between.groupby(["stage", "top"]).seen.sum() / rate
    return seconds.rename("seconds").sort_values(ascending=False).reset_index()


def _watch(command: Sequence[str], rate: int, stacks: Path) -> int:
    """Run the command under py-spy; returns the command's exit code.

    Raises:
        FileNotFoundError: py-spy is not installed, or could not watch.
    """
    if not which("py-spy"):
        raise FileNotFoundError(
            "py-spy is not to be found: `make flame` installs it, or pip install 'recurformer[bench]'"
        )
    stacks.parent.mkdir(parents=True, exist_ok=True)
    stacks.unlink(missing_ok=True)
    options = ["--native", "--subprocesses", "--idle", "--threads", "--rate", str(rate), "--format", "raw"]
    with TemporaryDirectory() as folder:
        code = Path(folder) / "code"  # py-spy's own exit code does not tell the command's
        told = ["sh", "-c", '"$@"; echo $? > "$0"', str(code), *command]
        subprocess.run(["py-spy", "record", *options, "--output", str(stacks), "--", *told], check=False)
        if not stacks.exists() or not code.exists():
            raise FileNotFoundError("py-spy could not watch the command: what it printed says why")
        return int(code.read_text())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, then print and keep what its stages did. Exit code: the command's; 1 when there is nothing."""
    parser = ArgumentParser(prog="python -m benchmarks.flame", description=__doc__)
    parser.add_argument(
        "--rate", type=int, default=5, help="samples per second; of a run read again, its own (%(default)s)"
    )
    parser.add_argument("--stages", type=Path, default="results/bench/flame.csv", help="file to write (%(default)s)")
    parser.add_argument("command", nargs="*", help="what to run and to watch, after `--` (default: read the last run)")
    args = parser.parse_args(argv)
    stacks = args.stages.with_suffix(".stacks")
    try:
        ended = _watch(args.command, args.rate, stacks) if args.command else 0
        with stacks.open() as lines:
            found = pd.DataFrame(samples(lines), columns=list(Sample._fields))
    except FileNotFoundError as error:
        print(f"benchmarks.flame: {error}", file=sys.stderr)
        return 1
    if not found.stage.notna().any():
        print("benchmarks.flame: no stage ran: a finished study has nothing to do", file=sys.stderr)
        return ended or 1
    stages, between = by_stage(found, args.rate), rows_between(found, args.rate)
    with atomic_path(args.stages) as path:
        stages.to_csv(path)
    print(stages.to_markdown(floatfmt=".3g"), between.head(SHOWN).to_markdown(floatfmt=".3g"), sep="\n\n")
    return ended


if __name__ == "__main__":
    sys.exit(main())
