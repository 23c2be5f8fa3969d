"""The real Trackio, in folders and processes of its own."""

import json
import sqlite3
from importlib.util import find_spec

import pytest
from real_trainings import STEPS, WRITER, end, start, train_killed_once, write, write_in_parallel

pytestmark = pytest.mark.skipif(find_spec("trackio") is None, reason="needs trackio: make dashboard installs it")
STORE = "results/tracking/trackio"
TAKE_OVER = f"""
import os
os.environ["TRACKIO_DIR"] = "{STORE}"
from trackio.server import import_inbox_once
import_inbox_once()
"""
"""What the dashboard does when it opens."""


def stored(folder):
    """Steps by (name, id) of a run, in the order in which the dashboard would read them."""
    end(start(folder, "", code=TAKE_OVER))
    runs = {}
    with sqlite3.connect(folder / STORE / "recurformer.db") as database:
        for name, run, step in database.execute("SELECT run_name, run_id, step FROM metrics ORDER BY run_id, step"):
            runs.setdefault((name, run), []).append(step)
    return runs


def test_no_point_of_eight_parallel_trainings_is_lost(tmp_path):
    write_in_parallel(tmp_path, "trackio", writers=8, rows=200)
    runs = stored(tmp_path)
    assert len(runs) == 8
    assert all(steps == list(range(1, 201)) for steps in runs.values())


def test_a_run_has_its_group_and_its_settings(tmp_path):
    write(tmp_path, "trackio", 1, 3)
    ((name, _),) = stored(tmp_path)
    assert name.startswith("hashhop/tiny/beta-0.5/seed-0/")
    with sqlite3.connect(tmp_path / STORE / "recurformer.db") as database:
        (config,) = database.execute("SELECT config FROM configs").fetchone()
    assert json.loads(config).items() >= {"_Group": "hashhop/tiny", "beta": 0.5, "seed": 0}.items()


def test_steps_that_are_computed_again_are_there_once(tmp_path):
    write(tmp_path, "trackio", 1, 21)
    stored(tmp_path)
    write(tmp_path, "trackio", 11, 31)
    ((_, steps),) = stored(tmp_path).items()
    assert steps == list(range(1, 31))


@pytest.mark.slow
def test_a_killed_training_and_its_import_leave_every_step_once(tmp_path):
    rows = train_killed_once(tmp_path, "trackio")
    ((live, steps),) = stored(tmp_path).items()
    assert steps == [row["step"] for row in rows] == list(range(10, STEPS + 1, 10))
    for _ in range(2):
        assert "trackio: 1 runs, 60 rows" in end(start(tmp_path, "", "track", "results"))
        ((imported, steps),) = stored(tmp_path).items()
        assert steps == [row["step"] for row in rows]
        assert imported[0] == live[0]
        assert imported[1] != live[1]


def test_a_store_that_cannot_be_written_costs_one_line(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/tracking").write_text("in the way")
    warned = end(start(tmp_path, "trackio", 0, 1, 20, code=WRITER))
    assert warned.count("tracker trackio gave up") == len(warned.splitlines()) == 1


def test_nothing_is_written_outside_the_store(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(tmp_path, "trackio", 1, 3)
    end(start(tmp_path, "", code=TAKE_OVER))
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*")] == ["results"]
    assert [path.name for path in (tmp_path / "results/tracking").iterdir()] == ["trackio"]
