"""The real Trackio and the real MLflow, in folders and processes of their own."""

import json
import sqlite3
import time
from importlib.util import find_spec

import pytest
from real_trainings import STEPS, WRITER, end, start, train_killed_once, write, write_in_parallel

TRACKIO = "results/tracking/trackio"
TAKE_OVER = f"""
import os
os.environ["TRACKIO_DIR"] = "{TRACKIO}"
from trackio.server import import_inbox_once
import_inbox_once()
"""
"""What Trackio's dashboard does when it opens."""
READER = """
import json
from mlflow import MlflowClient
client = MlflowClient("sqlite:///results/tracking/mlflow.db")
experiment = client.get_experiment_by_name("recurformer").experiment_id
for run in client.search_runs([experiment]):
    steps = sorted(metric.step for metric in client.get_metric_history(run.info.run_id, "loss"))
    data = {"name": run.info.run_name, "id": run.info.run_id, "status": run.info.status, "steps": steps}
    print(json.dumps(data | {"seed": int(run.data.params["seed"]), "group": run.data.tags["group"]}))
"""


def in_trackio(folder):
    """Its runs, with their steps in the order in which the dashboard would read them."""
    end(start(folder, "", code=TAKE_OVER))
    with sqlite3.connect(folder / TRACKIO / "recurformer.db") as database:
        runs = database.execute("SELECT run_id, run_name, config FROM configs").fetchall()
        rows = database.execute("SELECT run_id, step FROM metrics ORDER BY run_id, step").fetchall()
    found = [(run, name, [step for key, step in rows if key == run], json.loads(config)) for run, name, config in runs]
    return [
        {"id": run, "name": name, "steps": steps, "seed": config["seed"], "group": config["_Group"]}
        for run, name, steps, config in found
        if steps
    ]


def in_mlflow(folder):
    """Its runs, as its own client finds them."""
    lines = end(start(folder, "", code=READER)).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


STORES = {"trackio": in_trackio, "mlflow": in_mlflow}
pytestmark = pytest.mark.slow


@pytest.fixture(params=STORES)
def tracker(request):
    if find_spec(request.param) is None:
        pytest.skip(f"needs {request.param}: docs/tracking.md says how")
    return request.param


def test_no_point_of_eight_parallel_trainings_is_lost(tracker, tmp_path):
    write_in_parallel(tmp_path, tracker, writers=8, rows=100)
    runs = STORES[tracker](tmp_path)
    assert sorted(run["seed"] for run in runs) == list(range(8))
    for run in runs:
        assert run["steps"] == list(range(1, 101))
        assert run["name"].startswith(f"hashhop/tiny/beta-0.5/seed-{run['seed']}/") and run["group"] == "hashhop/tiny"
        assert run.get("status", "FINISHED") == "FINISHED"


def test_steps_that_are_computed_again_are_there_once(tracker, tmp_path):
    write(tmp_path, tracker, 1, 21)
    assert len(STORES[tracker](tmp_path)) == 1
    write(tmp_path, tracker, 11, 31)
    (run,) = STORES[tracker](tmp_path)
    assert run["steps"] == list(range(1, 31))


def test_a_killed_training_and_its_import_leave_every_step_once(tracker, tmp_path):
    rows = train_killed_once(tmp_path, tracker)
    (live,) = STORES[tracker](tmp_path)
    assert live["steps"] == [row["step"] for row in rows] == list(range(10, STEPS + 1, 10))
    for _ in range(2):
        assert f"{tracker}: 1 runs, 60 rows" in end(start(tmp_path, "", "track", "results", "--to", tracker))
        (imported,) = STORES[tracker](tmp_path)
        assert (imported["steps"], imported["name"]) == (live["steps"], live["name"])
        assert imported["id"] != live["id"] and imported.get("status", "FINISHED") == "FINISHED"


def test_a_store_that_cannot_be_written_costs_one_line(tracker, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/tracking").write_text("in the way")
    warned = end(start(tmp_path, tracker, 0, 1, 20, code=WRITER))
    assert warned.count(f"tracker {tracker} gave up") == len(warned.splitlines()) == 1


@pytest.mark.parametrize("tracker", ["trackio"], indirect=True)
def test_nothing_is_written_outside_the_store(tracker, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(tmp_path, tracker, 1, 3)
    end(start(tmp_path, "", code=TAKE_OVER))
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*")] == ["results"]
    assert [path.name for path in (tmp_path / "results/tracking").iterdir()] == ["trackio"]


@pytest.mark.parametrize("tracker", ["mlflow"], indirect=True)
def test_a_training_killed_while_it_makes_the_database_leaves_no_half_of_one(tracker, tmp_path):
    killed = start(tmp_path, tracker, 0, 1, 20, code=WRITER)
    while not list(tmp_path.glob("results/tracking/.unfinished-mlflow.db/mlflow.db")):
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(0.05)
    time.sleep(0.5)
    killed.kill()
    killed.communicate()
    assert not (tmp_path / "results/tracking/mlflow.db").exists()
    write(tmp_path, tracker, 1, 21)
    (run,) = in_mlflow(tmp_path)
    assert run["steps"] == list(range(1, 21))
