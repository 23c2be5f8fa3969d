"""What a run says of itself: for how long it will go on, and why a job ended."""

import json
import os

import pytest

from recurformer.records import run_record
from tests.workflow.dry_runs import DryRun, link_workflow, snakemake

TARGETS = [f"results/smoke/caches/{name}.csv" for name in ("complexity", "pyramidinfer")]


def said(run):
    return [line for line in (run.out + run.err).splitlines() if line.startswith("study ")]


def test_a_run_says_for_how_long_it_will_go_on(tmp_path):
    """Two jobs at once: of an unknown time at first, by the records of earlier runs then."""
    words = (*TARGETS, "--configfile", "config/smoke.yaml")
    assert said(DryRun(link_workflow(tmp_path), *words)) == [
        "study smoke: 2 jobs to go, no earlier run tells the time of 2"
    ]
    (tmp_path / TARGETS[0]).parent.mkdir(parents=True)
    for target in TARGETS:
        place = (tmp_path / target).with_suffix(".run.json")
        with run_record(place, "x", [], {}, outputs=[tmp_path / target]):
            (tmp_path / target).touch()
        place.write_text(json.dumps(json.loads(place.read_text()) | {"seconds": 600.0}))
    assert said(DryRun(tmp_path, *words, "--forceall")) == ["study smoke: 2 jobs to go, about 10 minutes"]


def test_results_without_their_run_are_named(tmp_path):
    """Of a job that ended after its run had been killed Snakemake knows no settings."""
    place = link_workflow(tmp_path) / TARGETS[0]
    place.parent.mkdir(parents=True)
    for file in (place, place.with_suffix(".run.json")):
        file.touch()
    run = DryRun(tmp_path, *TARGETS, "--configfile", "config/smoke.yaml")
    (line,) = (line for line in (run.out + run.err).splitlines() if "written without their run" in line)
    assert line.startswith("results written without their run: 1.") and line.endswith(f": {TARGETS[0]}")


@pytest.mark.parametrize(("end", "times"), [("kill -9 $$", 1), ("exit 1", 0)])
def test_a_job_that_the_kernel_ended_is_not_silent(end, times, tmp_path, monkeypatch):
    command = tmp_path / "bin/recurformer"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\n{end}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    words = (TARGETS[0], "--cores", "1", "--configfile", "config/smoke.yaml")
    answer = snakemake(link_workflow(tmp_path), *words)
    assert answer.returncode == 1
    said = "exit 137: this job was killed, most likely because the memory was full (README.md, troubleshooting)"
    assert answer.stderr.count(said) == times


def test_a_run_says_once_that_there_are_no_recordings(dry, tmp_path):
    beside = DryRun(link_workflow(tmp_path, "recorded"), "claims", "--configfile", "config/smoke.yaml")
    for run, times in ((dry("smoke"), 1), (beside, 0)):
        assert (run.out + run.err).count("recorded: no recorded measurements there.") == times
        assert any(job.rule == "claims" for job in run.jobs)


def test_a_graph_is_all_that_stands_on_standard_output(tmp_path):
    """As `dot` reads it; what a run says of itself goes elsewhere."""
    drawn = snakemake(link_workflow(tmp_path), TARGETS[0], "--dag", "--configfile", "config/smoke.yaml")
    assert drawn.returncode == 0, drawn.stderr
    assert drawn.stdout.startswith("digraph snakemake_dag {") and drawn.stdout.strip().count("}") == 1
    assert "no recorded measurements" in drawn.stderr
