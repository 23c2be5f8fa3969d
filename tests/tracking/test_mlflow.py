"""The real MLflow, in folders and processes of its own."""

import json
import time
from importlib.util import find_spec

import pytest
from real_trainings import WRITER, end, start, train_killed_once, write, write_in_parallel

pytestmark = pytest.mark.skipif(find_spec("mlflow") is None, reason="needs mlflow: docs/tracking.md says how")
READER = """
import json
from mlflow import MlflowClient
client = MlflowClient("sqlite:///results/tracking/mlflow.db")
experiment = client.get_experiment_by_name("recurformer").experiment_id
for run in client.search_runs([experiment]):
    steps = sorted(metric.step for metric in client.get_metric_history(run.info.run_id, "loss"))
    data = {"name": run.info.run_name, "status": run.info.status, "steps": steps}
    print(json.dumps(data | {"params": run.data.params, "group": run.data.tags["group"]}))
"""


def stored(folder):
    """What MLflow's own client finds."""
    lines = end(start(folder, "", code=READER)).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.slow
def test_no_point_of_eight_parallel_trainings_is_lost(tmp_path):
    write_in_parallel(tmp_path, "mlflow", writers=8, rows=50)
    runs = stored(tmp_path)
    assert len(runs) == 8
    assert all(run["steps"] == list(range(1, 51)) for run in runs)
    assert {run["status"] for run in runs} == {"FINISHED"}
    assert {run["group"] for run in runs} == {"hashhop/tiny"}
    assert {run["params"]["seed"] for run in runs} == set(map(str, range(8)))


@pytest.mark.slow
def test_a_training_killed_while_it_makes_the_database_leaves_no_half_of_one(tmp_path):
    killed = start(tmp_path, "mlflow", 0, 1, 20, code=WRITER)
    while not list(tmp_path.glob("results/tracking/.unfinished-mlflow.db/mlflow.db")):
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(0.05)
    time.sleep(0.5)
    killed.kill()
    killed.communicate()
    assert not (tmp_path / "results/tracking/mlflow.db").exists()
    write(tmp_path, "mlflow", 1, 21)
    (run,) = stored(tmp_path)
    assert run["steps"] == list(range(1, 21))


@pytest.mark.slow
def test_steps_that_are_computed_again_are_there_once(tmp_path):
    write(tmp_path, "mlflow", 1, 21)
    write(tmp_path, "mlflow", 11, 31)
    (run,) = stored(tmp_path)
    assert run["steps"] == list(range(1, 31))


@pytest.mark.slow
def test_a_killed_training_and_its_import_leave_every_step_once(tmp_path):
    rows = train_killed_once(tmp_path, "mlflow")
    (live,) = stored(tmp_path)
    assert live["steps"] == [row["step"] for row in rows]
    for _ in range(2):
        assert "mlflow: 1 runs, 60 rows" in end(start(tmp_path, "", "track", "results", "--to", "mlflow"))
        (imported,) = stored(tmp_path)
        assert imported["steps"] == live["steps"]
        assert imported["name"] == live["name"]
        assert imported["status"] == "FINISHED"


@pytest.mark.slow
def test_a_store_that_cannot_be_written_costs_one_line(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/tracking").write_text("in the way")
    warned = end(start(tmp_path, "mlflow", 0, 1, 20, code=WRITER))
    assert warned.count("tracker mlflow gave up") == len(warned.splitlines()) == 1
