import pytest
import tiny_training
from transformers import TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from recurformer.cli.main import main


@pytest.fixture
def mqar(tmp_path, monkeypatch):
    """Run a tiny training in a folder of its own; the exit code."""
    monkeypatch.chdir(tmp_path)
    return lambda name="a", beta=0.5, steps=6: main(tiny_training.mqar(name, beta, steps))


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
