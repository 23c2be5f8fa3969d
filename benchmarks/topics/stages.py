"""Whole stages of the command line on a tiny model, each in a fresh process as the workflow runs them.

A bare start of Python with torch and transformers is the baseline: it is most of a small stage's time, and no stage
with a model can be faster.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from tempfile import TemporaryDirectory

from benchmarks.case import Call, Candidate, Case, Options

BACKBONE = (
    "--source random --architecture qwen2 --hidden-size 32 --layers 2 --heads 4 --kv-heads 2 --head-dim 16"
    " --intermediate-size 64 --initializer-range 0.05 --tokenizer hash --vocabulary 32 --seed 0"
)
TASK = "--task-form tokens --task-hops 2 --task-vocabulary 32 --task-chains 2 --task-pairs 4"
STAGES = {
    "backbone": f"backbone base --downloads downloads {BACKBONE}",
    "profile": f"profile-hashhop base profile.parquet --name tiny --samples 8 --window 2 {TASK}",
    "select": "select profile.parquet heads.json --beta 0.5",
    "convert": "convert base converted --heads heads.json --d-state 8 --d-conv 4 --expand 2 --dt-rank 8",
    "hashhop": f"hashhop converted hashhop.csv --name tiny --beta 0.5 --samples 8 {TASK}",
}
"""Name -> arguments; each reads what those before it wrote."""
START = "from recurformer.cli.main import import_libraries as go; go(); import recurformer.model.modeling"


def _python(options: Options, folder: str, *words: str) -> None:
    """Run Python with these arguments in a folder, with this process's packages.

    Raises:
        RuntimeError: it failed; the message is the last line that it printed.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in sys.path),
        "OMP_NUM_THREADS": str(options.threads),
    }
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:4])}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")


def _stage(options: Options, folder: str, name: str) -> None:
    _python(options, folder, "-m", "recurformer.cli.main", *STAGES[name].split())


@cache
def _workplace(options: Options) -> TemporaryDirectory:
    """A folder in which every stage has run once; it goes with this process."""
    folder = TemporaryDirectory(prefix="recurformer-stages-")
    for name in STAGES:
        _stage(options, folder.name, name)
    return folder


def cases(options: Options) -> Iterator[Case]:
    """One case for each stage, the first only in a quick run."""

    def start() -> Call:
        return Call(partial(_python, options, _workplace(options).name, "-c", START))

    def stage(name: str) -> Call:
        return Call(partial(_stage, options, _workplace(options).name, name))

    for name in list(STAGES)[: 1 if options.quick else None]:
        candidates = (Candidate("start", start), Candidate("stage", partial(stage, name)))
        yield Case(name, "start", candidates, memory=False)
