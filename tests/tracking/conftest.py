from argparse import Namespace

import pytest

from recurformer import tracking
from recurformer.cli.main import main
from recurformer.tracking import live


class Notebook:
    """A tracker that keeps what it is told: (place, attempt) -> step -> values."""

    runs: dict
    names: dict
    ended: list

    def open(self, run):
        self.run, self.key = run, (run.place, run.attempt)
        self.runs.setdefault(self.key, {})
        self.names[self.key] = run.name

    def log(self, rows):
        for row in rows:
            self.runs[self.key].setdefault(row.step, row.values)

    def finish(self, complete):
        self.ended.append(complete)

    def drop_other_attempts(self):
        for place, attempt in list(self.runs):
            if place == self.run.place and attempt != self.run.attempt:
                del self.runs[place, attempt]


@pytest.fixture
def notebook(monkeypatch):
    """The class of a tracker `notebook`, with nothing in it; writes do not wait for one another."""
    Notebook.runs, Notebook.names, Notebook.ended = {}, {}, []
    monkeypatch.setitem(tracking.SINKS, "notebook", Notebook)
    monkeypatch.setattr(live, "PAUSE", 0.0)
    return Notebook


@pytest.fixture
def args():
    """The arguments of a HashHop training."""
    settings = {"name": "tiny", "beta": 0.5, "seed": 3, "steps": "40", "mixer_learning_rate": None}
    return Namespace(stage="train_hashhop", metrics="results/tiny/metrics.jsonl", record="x", threads=1, **settings)


@pytest.fixture
def row():
    def make(step, loss=1.0):
        return {"step": step, "loss": loss, "learning_rate": 0.1, "tokens": 8 * step, "seconds": step / 2}

    return make


@pytest.fixture
def mqar(tmp_path, monkeypatch):
    """Run a tiny training by its command, in a folder of its own; the exit code."""
    monkeypatch.chdir(tmp_path)
    sizes = "--hidden-size 8 --layers 1 --heads 2 --kv-heads 1 --head-dim 4 --vocabulary 16"
    recipe = "--training-steps 6 --training-batch-size 2 --training-learning-rate 0.01 --training-log-every 2"
    names = "--metrics results/metrics.jsonl --record results/run.json --beta 0.5 --rate 0.01"
    words = f"mqar results/mqar.csv {names} {sizes} --train 16:2 --test 16:2 --test-samples 2 {recipe}"
    return lambda: main(words.split())
