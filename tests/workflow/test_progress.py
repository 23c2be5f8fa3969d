"""What a run says of itself, by real runs: how to know beforehand what it does, what runs, and for how long."""

import os
import re

import pytest

from tests.workflow.dry_runs import DryRun, link_workflow, snakemake

TARGETS = [f"results/smoke/caches/{name}.csv" for name in ("complexity", "pyramidinfer")]
HINT = "`recurformer plan --configfile config/smoke.yaml` says which jobs there are, why, for how long and with what"


def said(folder, *options):
    """The lines of a run of two jobs, of which one can run at a time; each is expected to take a minute."""
    done = snakemake(link_workflow(folder), *TARGETS, "--cores", "1", *options, "--configfile", "config/smoke.yaml")
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).splitlines()


@pytest.mark.slow
def test_a_run_says_what_runs_and_for_how_long_it_will(tmp_path):
    lines = said(tmp_path)
    assert lines.count(f"study smoke: {HINT}") == 1
    assert lines.index(f"study smoke: {HINT}") < next(n for n, line in enumerate(lines) if "rule " in line)
    running = next(n for n, line in enumerate(lines) if line.startswith("running: "))
    assert re.fullmatch(r"running: (complexity|pyramidinfer) \(for \d s\)", lines[running])
    seconds = re.fullmatch(r"0 of 2 jobs done in \d s, about (\d+) s left", lines[running + 1])
    assert 105 <= int(seconds[1]) <= 119


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


@pytest.mark.parametrize(("options", "hints"), [(["--dry-run"], 1), (["--touch"], 0)])
def test_a_dry_run_names_the_plan(options, hints, tmp_path):
    assert said(tmp_path, *options, "--quiet", "all").count(HINT) == hints


def test_a_run_says_once_that_there_are_no_recordings(dry, tmp_path):
    beside = DryRun(link_workflow(tmp_path, "recorded"), "claims", "--configfile", "config/smoke.yaml")
    for run, times in ((dry("all", "smoke"), 1), (beside, 0)):
        assert (run.out + run.err).count("recorded: no recorded measurements there.") == times
        assert any(job.rule == "claims" for job in run.jobs)
