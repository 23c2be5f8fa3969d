"""The real Trackio and the real MLflow, in folders and processes of their own.

MLflow has its own environment (`make .venv/mlflow/.installed`), so it takes part in the imports alone.
"""

import json
import os
import sqlite3
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny_training import mqar

from recurformer.cli.main import main

STORE = "results/tracking"
STEPS = 300
READER = """
import json
from mlflow import MlflowClient
client = MlflowClient("sqlite:///results/tracking/mlflow.db")
experiment = client.get_experiment_by_name("recurformer").experiment_id
for run in client.search_runs([experiment]):
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "train/loss")]
    print(json.dumps([run.info.run_name, sorted(steps), run.data.metrics, run.data.params]))
"""


def start(folder, tracker, words, code=None, python=sys.executable):
    """A `recurformer` command, or some code, in `folder`, with nothing set that names another store."""
    elsewhere = ("TRACKIO_", "MLFLOW_", "RECURFORMER_")
    settings = {key: value for key, value in os.environ.items() if not key.startswith(elsewhere)}
    if shared := os.environ.get("SHARED"):
        settings |= {"TRACKIO_DIR": shared, "MLFLOW_TRACKING_URI": f"sqlite:///{shared}.db"}
    return subprocess.Popen(
        [python, *(["-c", code] if code else ["-m", "recurformer.cli.main", *words])],
        cwd=folder,
        env=settings | {"RECURFORMER_TRACKERS": tracker, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process):
    """What a process wrote to standard output and to standard error, when it ended well."""
    output, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    return output, errors


@pytest.fixture
def train(monkeypatch):
    """Trains in a folder, without a tracker."""

    def run(folder, **settings):
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.delenv("RECURFORMER_TRACKERS", raising=False)
            assert main(mqar(**settings)) == 0

    return run


def in_trackio(folder):
    """Its runs: name -> (steps of the curve, metrics, settings)."""
    with sqlite3.connect(folder / STORE / "trackio/recurformer.db") as database:
        rows = database.execute("SELECT run_name, run_id, step, metrics FROM metrics ORDER BY id").fetchall()
        configs = dict(database.execute("SELECT run_id, config FROM configs").fetchall())
    found = {}
    for name, run, step, metrics in rows:
        steps, values, _ = found.setdefault((name, run), ([], {}, json.loads(configs[run])))
        values.update(json.loads(metrics))
        steps += [step] * ("train/loss" in json.loads(metrics))
    assert len({name for name, _ in found}) == len(found), "a run is there twice"
    return {name: run for (name, _), run in found.items()}


def in_mlflow(folder):
    """The same, as its own client finds them."""
    lines = end(start(folder, "", "", READER, PYTHONS["mlflow"]))[0].splitlines()
    runs = [json.loads(line) for line in lines if line.startswith("[")]
    return {name: tuple(run) for name, *run in runs}


PYTHONS = {"trackio": sys.executable, "mlflow": f"{sys.prefix}/mlflow/bin/python"}
STORES = {"trackio": in_trackio, "mlflow": in_mlflow}
pytestmark = pytest.mark.slow


@pytest.fixture
def tracker():
    if find_spec("trackio") is None:
        pytest.skip("needs trackio: docs/provenance.md says how")
    return "trackio"


@pytest.fixture(params=STORES)
def importer(request):
    """Imports the runs of a folder into a tracker; what the command printed, and the runs that are then there."""
    if find_spec("trackio") is None or not Path(PYTHONS[request.param]).exists():
        pytest.skip(f"needs {request.param}: docs/provenance.md says how")

    def track(folder, read=True):
        words = ["track", "results", "--to", request.param]
        said = end(start(folder, "", words, python=PYTHONS[request.param]))[0]
        return (said, STORES[request.param](folder)) if read else said

    return track


def test_all_runs_of_a_folder_are_there_once_however_often_they_are_imported(train, importer, tmp_path):
    """Also one whose result was replaced meanwhile: as it is now."""
    train(tmp_path, name="a", beta=0.0)
    for beta, count in ((0.0, 2), (1.0, 1)):
        train(tmp_path, name="b", beta=beta)
        assert f": {count} new runs of 2" in importer(tmp_path, read=False)
    said, runs = importer(tmp_path)
    assert ": 0 new runs of 2" in said
    assert sorted(runs) == ["a", "b"]
    for name, beta in (("a", 0.0), ("b", 1.0)):
        record = json.loads((tmp_path / f"results/{name}/run.json").read_text())
        steps, metrics, settings = runs[name]
        assert steps == [2, 4, 6] and float(settings["beta"]) == beta
        assert {key: metrics[key] for key in record["metrics"]} == record["metrics"]
        assert metrics["peak_memory_mib"] > 50


def test_studies_that_share_a_store_leave_each_others_runs(train, importer, tmp_path, monkeypatch):
    """And two records of one name stay."""
    monkeypatch.setenv("SHARED", str(tmp_path / "shared"))
    folders = [tmp_path / "one's", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        train(folder)
    record = json.loads((folders[0] / "results/a/run.json").read_text())
    (folders[0] / "results/a.run.json").write_text(json.dumps(record | {"run": "other"}))
    for folder, new, count in ((folders[0], 2, 2), (folders[1], 1, 1), (folders[0], 0, 2)):
        assert f": {new} new runs of {count}" in importer(folder, read=False)


def test_a_killed_training_and_its_import_leave_every_step_once(tracker, tmp_path):
    words = mqar(steps=STEPS, save_every=20)
    killed = start(tmp_path, tracker, words)
    while not list(tmp_path.glob("results/a/mqar.csv.checkpoints/*/checkpoint-*/complete")):
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(0.05)
    killed.kill()
    killed.communicate()
    assert "gave up" not in end(start(tmp_path, tracker, words))[1]
    assert list(STORES[tracker](tmp_path)) == ["a"], "the live run of the resumed training is the same"
    end(start(tmp_path, "", ["track", "results", "--to", tracker]))
    ((steps, _, _),) = STORES[tracker](tmp_path).values()
    assert steps == list(range(2, STEPS + 1, 2))
