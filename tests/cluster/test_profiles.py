"""Every profile is explained, and its plugin takes each of its keys."""

import re
import shutil
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
def test_the_line_above_explains_each_key(profile):
    lines = read(profile).splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r"(  )?[\w-]+:(?! [*&])", line)]
    assert len(keys) > 5
    assert [lines[number] for number in keys if not lines[number - 1].lstrip().startswith("# ")] == []


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


def test_a_key_that_no_plugin_knows_is_refused(tmp_path):
    needs("slurm")
    bad = shutil.copytree(ROOT / "workflow/profiles/slurm", tmp_path / "bad") / "profile.yaml"
    bad.write_text(bad.read_text().replace("slurm-status-command", "slurm-status-comand"))
    answer = dry_run(bad.parent, link_workflow(tmp_path))
    assert answer.returncode != 0
    assert "slurm-status-comand" in answer.stderr
