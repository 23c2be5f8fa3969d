"""What a study measures on a device: real jobs, on a processor; and the tests that are run there."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import pandas as pd
import pytest
import yaml

from recurformer.records import read_record
from tests.workflow.dry_runs import ROOT, DryRun, link_workflow, snakemake

TESTS = """
import pytest

@pytest.mark.card
def test_that_passes():
    pass

@pytest.mark.card
@pytest.mark.skip(reason="needs two cards")
def test_that_is_skipped():
    pass

@pytest.mark.broken
def test_that_fails():
    assert False

def test_that_nobody_asked_for():
    assert False
"""


@pytest.fixture
def run_tests(tmp_path, monkeypatch):
    """The script, of a project with four tests."""
    spec = spec_from_file_location("run_tests", ROOT / "workflow/run_tests.py")
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_four.py").write_text(TESTS)
    monkeypatch.setattr(script, "ROOT", tmp_path)

    def run(markers):
        words = [str(tmp_path / "tests.csv"), "--markers", markers, "--record", str(tmp_path / "tests.run.json")]
        monkeypatch.setattr(sys, "argv", ["run_tests.py", *words])
        monkeypatch.delitem(sys.modules, "test_four", raising=False)  # of another folder
        return script.main()

    return run


def test_the_tests_that_were_asked_for_are_kept_as_they_ended(run_tests, tmp_path):
    assert run_tests("card") == 0
    frame = pd.read_csv(tmp_path / "tests.csv").set_index("test")
    assert frame.outcome.to_dict() == {
        "tests/test_four.py::test_that_passes": "passed",
        "tests/test_four.py::test_that_is_skipped": "skipped",
    }
    assert "needs two cards" in frame.reason["tests/test_four.py::test_that_is_skipped"]
    assert read_record(tmp_path / "tests.run.json")["outputs"] == ["tests.csv"]


@pytest.mark.parametrize(
    ("markers", "said"),
    [
        ("card or broken", "tests 'card or broken': 1 failed"),
        ("card and skip", "tests 'card and skip': all 1 were skipped (Skipped: needs two cards)"),
    ],
)
def test_no_report_of_tests_that_fail_or_do_not_run(run_tests, tmp_path, capsys, markers, said):
    assert run_tests(markers) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "tests.csv").exists() and not (tmp_path / "tests.run.json").exists()


@pytest.mark.slow
def test_caches_are_measured_by_an_ordinary_job(tmp_path):
    link_workflow(tmp_path, without=["config"])
    study = yaml.safe_load((ROOT / "config/smoke.yaml").read_text())
    study["device_measurements"] = {"device": "cpu", "backbones": ["tiny"]}
    study["caches"]["sizes"] = {"lengths": [64, 128]}
    (tmp_path / "config").mkdir()
    (tmp_path / "config/default.yaml").write_text(yaml.safe_dump(study))
    answer = snakemake(tmp_path, "device_measurements", "--cores", "1")
    assert answer.returncode == 0, answer.stderr
    place = tmp_path / "results/smoke/device/tiny"
    frame = pd.read_csv(place / "cache_peak.csv")
    assert sorted(set(frame.beta)) == study["betas"]
    assert frame.total_bytes.tolist() == frame.counted_bytes.tolist()
    assert read_record(place / "cache_peak.run.json")["outputs"] == ["cache_peak.csv"]
    assert (place / "cache_peak.benchmark.tsv").is_file()


@pytest.mark.slow
def test_tests_and_speed_run_again_when_their_code_changes(tmp_path):
    link_workflow(tmp_path, without=["config"])
    study = yaml.safe_load((ROOT / "config/smoke.yaml").read_text())
    study["device_measurements"] = {"device": "cpu", "tests": "gpu", "speed": ["scan"]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    for name in ("tests", "benchmarks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.py").write_text("x = 1\n")
    words = ("device_measurements", "--configfile", "study.yaml")
    for job in DryRun(tmp_path, *words).jobs:
        for output in job.outputs:
            (tmp_path / output).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / output).touch()
    assert snakemake(tmp_path, *words, "--forceall", "--touch", "--cores", "1").returncode == 0
    assert DryRun(tmp_path, *words).jobs == []
    for name in ("tests", "benchmarks"):
        (tmp_path / name / "one.py").write_text("x = 2\n")
    jobs = DryRun(tmp_path, *words).jobs
    assert {job.rule: job.reasons for job in jobs} == dict.fromkeys(
        ("device_tests", "speed"), ("the code of its stage has changed",)
    )
