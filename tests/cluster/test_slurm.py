"""Real jobs of a real SLURM on one node: `with_slurm` starts it, `sbatch` gets what the profile says."""

import os
import shutil
import subprocess

import pytest

from recurformer.records import find_records
from tests.cluster.workspace import ROOT, needs, run
from tests.workflow.dry_runs import link_workflow

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
HERE = ROOT / "tests/cluster"
CARDS = """
rule all:
    input:
        expand("card-{job}", job=[0, 1]),


rule card:
    output:
        "card-{job}",
    resources:
        gpu=1,
        mem_mb=100,
        runtime=5,
    shell:
        "touch started-{wildcards.job};"
        " timeout 100 bash -c 'until [ -e started-0 ] && [ -e started-1 ]; do sleep 0.2; done';"
        " echo $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES > {output}"
"""


@pytest.fixture(autouse=True)
def slurm():
    needs("slurm")
    if missing := [program for program in PROGRAMS if not shutil.which(program)]:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge")
    if os.geteuid() != 0:
        pytest.skip("needs root: SLURM's daemons are started")
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("needs leave to make namespaces, which some containers withhold")


@pytest.mark.slow
def test_jobs_of_the_workflow_run_and_one_that_dies_runs_again(tmp_path):
    """Jobs that count, and one after the other two that make a model and train it."""
    targets = ["results/smoke/hashhop/hashhop-tiny/base", "results/smoke/caches/pyramidinfer.csv"]
    answer = run(HERE / "with_slurm", HERE / "smoke_study", *targets, folder=link_workflow(tmp_path))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "3 JobState=COMPLETED" in answer.stdout
    assert "1 JobState=FAILED" in answer.stdout
    assert (tmp_path / ".snakemake/died").is_dir()
    assert all((tmp_path / target).exists() for target in targets)
    jobs = [record["host"]["slurm_job"] for _, record in find_records(tmp_path / "results")]
    assert len(set(jobs)) == len(jobs) == 3


@pytest.mark.slow
def test_two_jobs_that_hold_a_card_at_once_hold_different_ones(tmp_path):
    (tmp_path / "Snakefile").write_text(CARDS)
    profile = ROOT / "workflow/profiles/slurm"
    hurry = ["--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "2"]
    command = ["python", "-m", "snakemake", "--workflow-profile", profile, *hurry]
    answer = run(HERE / "with_slurm", *command, folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    jobs, cards = zip(*[(tmp_path / f"card-{job}").read_text().split() for job in (0, 1)], strict=True)
    assert len(set(jobs)) == 2
    assert set(cards) == {"0", "1"}
