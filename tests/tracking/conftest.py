import pytest
from transformers import TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from recurformer.cli.main import main

RECIPE = "--training-steps {steps} --training-batch-size 2 --training-learning-rate 0.01 --training-log-every 2"
MQAR = (
    "mqar results/{name}/mqar.csv --metrics results/{name}/metrics.jsonl --record results/{name}/run.json "
    "--beta {beta} --rate 0.01 --hidden-size 8 --layers 1 --heads 2 --kv-heads 1 --head-dim 4 --vocabulary 16 "
    f"--train 16:2 --test 16:2 --test-samples 2 {RECIPE}"
)
"""A tiny training by its command."""


@pytest.fixture
def mqar(tmp_path, monkeypatch):
    """Run a tiny training in a folder of its own; the exit code."""
    monkeypatch.chdir(tmp_path)
    return lambda name="a", beta=0.5, steps=6: main(MQAR.format(name=name, beta=beta, steps=steps).split())


class Notebook(TrainerCallback):
    """One of Trainer's trackers, which keeps what it is told."""

    seen: list

    def on_train_begin(self, args, state, control, **more):
        self.seen.append((args.project, args.run_name))

    def on_log(self, args, state, control, logs, **more):
        self.seen.append((state.global_step, logs))

    def on_train_end(self, args, state, control, **more):
        self.seen.append("end")


@pytest.fixture
def notebook(monkeypatch):
    """The class of a tracker `notebook`, with nothing in it."""
    Notebook.seen = []
    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "notebook", Notebook)
    return Notebook
