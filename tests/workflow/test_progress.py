"""What a run says of itself, by real runs: for how long it will go on, and why a job ended."""

import json
import os
import re

import pytest

from tests.workflow.dry_runs import DryRun, link_workflow, snakemake

TARGETS = [f"results/smoke/caches/{name}.csv" for name in ("complexity", "pyramidinfer")]


def said(folder, *options):
    """The lines of a run of two jobs, of which one can run at a time."""
    done = snakemake(folder, *TARGETS, "--cores", "1", *options, "--configfile", "config/smoke.yaml")
    assert done.returncode == 0, done.stderr
    return [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("study smoke: ")]


@pytest.mark.slow
def test_a_run_says_for_how_long_it_will_go_on(tmp_path):
    """By nothing at first; by its own earlier runs after that, in a dry run too."""
    link_workflow(tmp_path)
    assert said(tmp_path)[0] == "study smoke: 2 jobs to go, no earlier run tells the time of 2"
    for target in TARGETS:
        record = (tmp_path / target).with_suffix(".run.json")
        record.write_text(json.dumps(json.loads(record.read_text()) | {"seconds": 600.0}))
    again = said(tmp_path, "--forceall", "--dry-run")
    assert again == ["study smoke: 2 jobs to go, about 20 minutes"]


def test_the_default_study_knows_its_rules_before_its_first_run(dry):
    run = dry("all", "default")
    lines = [line for line in (run.out + run.err).splitlines() if line.startswith("study default: ")]
    assert len(lines) == 1 and re.fullmatch(r"study default: \d+ jobs to go, about \d+ minutes", lines[0])


@pytest.mark.parametrize(("end", "times"), [("kill -9 $$", 1), ("exit 1", 0)])
def test_a_job_that_the_kernel_ended_is_not_silent(end, times, tmp_path):
    command = tmp_path / "bin/recurformer"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\n{end}\n")
    command.chmod(0o755)
    environment = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    words = (TARGETS[0], "--cores", "1", "--configfile", "config/smoke.yaml")
    answer = snakemake(link_workflow(tmp_path), *words, environment=environment)
    assert answer.returncode == 1
    said = "exit 137: this job was killed, most likely because the memory was full (README.md, troubleshooting)"
    assert answer.stderr.count(said) == times


def test_a_run_says_once_that_there_are_no_recordings(dry, tmp_path):
    beside = DryRun(link_workflow(tmp_path, "recorded"), "claims", "--configfile", "config/smoke.yaml")
    for run, times in ((dry("all", "smoke"), 1), (beside, 0)):
        assert (run.out + run.err).count("recorded: no recorded measurements there.") == times
        assert any(job.rule == "claims" for job in run.jobs)


def test_a_graph_is_all_that_stands_on_standard_output(tmp_path):
    """As `dot` reads it; what a run says of itself goes elsewhere."""
    drawn = snakemake(link_workflow(tmp_path), TARGETS[0], "--dag", "--configfile", "config/smoke.yaml")
    assert drawn.returncode == 0, drawn.stderr
    assert drawn.stdout.startswith("digraph snakemake_dag {") and drawn.stdout.strip().count("}") == 1
    assert "no recorded measurements" in drawn.stderr
