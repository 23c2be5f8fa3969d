"""Every profile is explained, and its plugin takes each of its keys."""

import tomllib

import pytest
import yaml
from packaging.requirements import Requirement

from tests.cluster.workspace import PROFILES, ROOT, needs
from tests.workflow.dry_runs import link_workflow, snakemake

TARGET = "results/smoke/mqar/beta-0.5/lr-0.01/seed-0/mqar.csv"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def read(profile):
    return (ROOT / "workflow/profiles" / profile / "profile.yaml").read_text()


def dry_run(profile, folder):
    words = (TARGET, "--configfile", "config/smoke.yaml", "--dry-run", "--workflow-profile", str(profile))
    return snakemake(folder, *words)


@pytest.mark.parametrize("profile", PROFILES)
def test_an_extra_brings_the_plugin(profile):
    assert yaml.safe_load(read(profile))["executor"] == profile
    names = {Requirement(line).name for line in EXTRAS[profile]}
    assert f"snakemake-executor-plugin-{profile}" in names


@pytest.mark.parametrize("profile", PROFILES)
def test_the_plugin_takes_every_key(profile, tmp_path):
    needs(profile)
    answer = dry_run(f"workflow/profiles/{profile}", link_workflow(tmp_path))
    assert answer.returncode == 0, answer.stderr
    assert "rule mqar:" in answer.stdout + answer.stderr
