"""Real jobs under the profile cluster-generic, whose submit command is a plain shell on this machine."""

import subprocess
import time

import pytest

from tests.cluster.workspace import ROOT, needs, snakemake
from tests.workflow.dry_runs import link_workflow

PROFILE = ROOT / "workflow/profiles/cluster-generic"
DIES_ONCE = """
rule job:
    output:
        "done",
    shell:
        "mkdir died 2> /dev/null && kill -KILL 0; touch {output}"
"""


@pytest.fixture(autouse=True)
def plugin():
    needs("cluster-generic")


@pytest.mark.slow
def test_a_job_of_the_workflow_runs(tmp_path):
    target = "results/smoke/caches/pyramidinfer.csv"
    answer = snakemake(PROFILE, target, "--configfile", "config/smoke.yaml", folder=link_workflow(tmp_path))
    assert answer.returncode == 0, answer.stderr
    assert "with external jobid" in answer.stderr
    assert (tmp_path / target).is_file()


@pytest.mark.slow
def test_a_job_that_is_killed_with_its_shell_runs_again(tmp_path):
    (tmp_path / "Snakefile").write_text(DIES_ONCE)
    answer = snakemake(PROFILE, folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr.count("with external jobid") == 2
    assert (tmp_path / "done").is_file()


@pytest.mark.parametrize(("script", "outcome"), [("exit 0", "success"), ("exit 3", "failed"), ("sleep 50", "running")])
def test_what_became_of_a_job(script, outcome, tmp_path):
    (tmp_path / "job").write_text(script)
    job = called("submit", "job", folder=tmp_path)
    assert wait(job, tmp_path, while_running=outcome != "running") == outcome
    called("cancel", job, folder=tmp_path)
    assert wait(job, tmp_path) == ("failed" if outcome == "running" else outcome)


def called(script, *words, folder):
    return subprocess.check_output([PROFILE / script, *words], cwd=folder, text=True).strip()


def wait(job, folder, while_running=True):
    while (answer := called("status", job, folder=folder)) == "running" and while_running:
        time.sleep(0.1)
    return answer
