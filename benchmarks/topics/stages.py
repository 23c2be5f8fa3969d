"""Whole stages of the command line on a tiny model, each in a fresh process as the workflow runs them.

A bare start of Python with torch and transformers is the baseline: it is most of a small stage's time, and no stage
with a model can be faster.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from tempfile import TemporaryDirectory

from benchmarks.case import Call, Candidate, Case, Options

BACKBONE = {"source": "random", "architecture": "qwen2", "hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 2}
BACKBONE |= {"head_dim": 16, "intermediate_size": 64, "initializer_range": 0.05, "tokenizer": "hash", "vocabulary": 32}
TASK = {"form": "tokens", "hops": 2, "vocabulary": 32, "chains": 2, "pairs": 4}
STAGES = {
    "backbone": ("backbone base --downloads downloads", BACKBONE),
    "profile": ("profile-hashhop base profile.parquet --name tiny", {"samples": 8, "window": 2, "task": TASK}),
    "select": ("select profile.parquet heads.json --beta 0.5", {}),
    "convert": ("convert base converted --heads heads.json", {"mamba": {"d_state": 8, "dt_rank": 8}}),
    "hashhop": ("hashhop converted hashhop.parquet --original base --name tiny", {"samples": 8, "task": TASK}),
}
"""Name -> arguments and settings; each reads what those before it wrote."""
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
    words, settings = STAGES[name]
    _python(options, folder, "-m", "recurformer.cli.main", *words.split(), "--settings", json.dumps(settings))


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
