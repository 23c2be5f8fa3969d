"""How runs are named, grouped and told apart."""

import pytest

from recurformer.tracking.run import Run

TEXT = {"name": "smollm2-135m", "beta": 0.5, "seed": 0}


def run(stage="train", settings=TEXT, metrics="results/text/metrics.jsonl", attempt="a"):
    return Run.of(stage, settings, metrics, attempt)


@pytest.mark.parametrize(
    ("stage", "settings", "group", "name"),
    [
        ("train", TEXT, "text/smollm2-135m", "text/smollm2-135m/beta-0.5/seed-0/"),
        ("train-hashhop", TEXT, "hashhop/smollm2-135m", "hashhop/smollm2-135m/beta-0.5/seed-0/"),
        ("train_hashhop", TEXT, "hashhop/smollm2-135m", "hashhop/smollm2-135m/beta-0.5/seed-0/"),
        ("mqar", {"beta": 1.0, "rate": 0.003, "seed": 2}, "mqar", "mqar/beta-1.0/lr-0.003/seed-2/"),
    ],
)
def test_a_run_is_named_by_what_the_study_varies(stage, settings, group, name):
    found = run(stage, settings)
    assert found.group == group
    assert found.name.startswith(name)


def test_two_results_are_two_runs_whatever_their_settings():
    base, studied = run(metrics="results/tiny/base.metrics.jsonl"), run(metrics="results/tiny/metrics.jsonl")
    assert base.place != studied.place
    assert base.name != studied.name
    assert "/base." in base.name


def test_a_result_is_the_same_however_its_path_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(metrics="a/metrics.jsonl").place == run(metrics=tmp_path / "b" / ".." / "a" / "metrics.jsonl").place


def test_settings_of_the_machine_are_left_out():
    settings = TEXT | {"threads": 4, "record": "run.json", "checkpoints": "/tmp/x", "windows": None, "stage": "train"}
    assert run(settings=settings).config == TEXT


def test_a_stage_that_trains_nothing_is_refused():
    with pytest.raises(ValueError, match=r"'cache' trains nothing; these do: train, train-hashhop, mqar"):
        run(stage="cache")
