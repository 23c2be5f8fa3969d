"""Real trainings in processes of their own, for the tests of real trackers."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

WRITER = """
import json
import sys
from argparse import Namespace
from pathlib import Path
from recurformer.tracking import live

live.PATIENCE = 200  # these trainings are over before a tracker on a busy machine has begun
seed, first, last = map(int, sys.argv[1:])
args = Namespace(stage="train_hashhop", name="tiny", beta=0.5, seed=seed, metrics=f"results/seed-{seed}/metrics.jsonl")
log = Path(f"results/seed-{seed}.checkpoints/a/metrics.jsonl")
log.parent.mkdir(parents=True, exist_ok=True)
with live.tracked(args, log.parent):
    before = log.read_text().splitlines()[: first - 1] if first > 1 else []
    rows = [
        {"step": step, "loss": 1 / step, "learning_rate": 0.1, "tokens": 8 * step, "seconds": step / 10}
        for step in range(first, last)
    ]
    log.write_text("".join(line + "\\n" for line in [*before, *map(json.dumps, rows)]))
"""
STEPS = 600
TRAINING = (
    "mqar results/mqar.csv --metrics results/metrics.jsonl --record results/run.json --beta 0.5 --rate 0.001 "
    "--hidden-size 8 --layers 1 --heads 2 --kv-heads 1 --head-dim 4 --vocabulary 16 --train 16:2 --test 16:2 "
    f"--test-samples 2 --training-steps {STEPS} --training-batch-size 2 --training-learning-rate 0.001 "
    "--training-log-every 10 --training-save-every 100"
)


def start(folder, tracker, *words, code=None):
    """A `recurformer` command, or some code, in `folder`, with nothing set that names another store."""
    elsewhere = ("TRACKIO_", "MLFLOW_", "RECURFORMER_")
    settings = {key: value for key, value in os.environ.items() if not key.startswith(elsewhere)}
    command = ["-c", code] if code else ["-m", "recurformer.cli.main"]
    return subprocess.Popen(
        [sys.executable, *command, *map(str, words)],
        cwd=folder,
        env=settings | {"RECURFORMER_TRACKERS": tracker, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process):
    """What a process wrote, its errors behind its output, when it ended well."""
    output, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    return output + errors


def write_in_parallel(folder, tracker, writers, rows):
    for process in [start(folder, tracker, seed, 1, rows + 1, code=WRITER) for seed in range(writers)]:
        assert "gave up" not in end(process)


def write(folder, tracker, first, last):
    assert "gave up" not in end(start(folder, tracker, 0, first, last, code=WRITER))


def train_killed_once(folder, tracker):
    """A training that is killed after a checkpoint and started again; its own log."""
    killed = start(folder, tracker, *TRAINING.split())
    while not list(Path(folder).glob("results/mqar.csv.checkpoints/*/checkpoint-*/seal.json")):
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(0.05)
    killed.kill()
    killed.communicate()
    assert "gave up" not in end(start(folder, tracker, *TRAINING.split()))
    return [json.loads(line) for line in Path(folder, "results/metrics.jsonl").read_text().splitlines()]
