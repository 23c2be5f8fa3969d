"""The DAG of every study, by dry runs: what is asked for is planned, and nothing starts from a bad configuration."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUDIES = sorted(path.stem for path in (ROOT / "config").glob("*.yaml"))


def snakemake(*words, folder):
    """A dry run in `folder`, which holds nothing but links to the workflow."""
    for name in ("Snakefile", "workflow", "config", "environment.yml", "profiles"):
        link = folder / name
        if not link.exists():
            link.symlink_to(ROOT / name)
    command = [sys.executable, "-m", "snakemake", *words, "--dry-run", "--cores", "2"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def jobs(answer):
    table = re.search(r"^job +count\n-[- ]+\n((?:\S+ +\d+\n)+)", answer.stdout + answer.stderr, re.MULTILINE)
    assert table, answer.stderr
    return {name: int(count) for name, count in (line.split() for line in table[1].splitlines())}


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_plans_every_table_and_figure(study, tmp_path):
    answer = snakemake("all", "--configfile", f"config/{study}.yaml", folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    planned = jobs(answer)
    assert planned["table"] == 5
    assert planned["figure"] == 6
    below = "" if study == "default" else f"{study}/"
    assert f"results/{below}tables/table4.csv" in answer.stdout + answer.stderr
    assert f"figures/{below}figure4.svg" in answer.stdout + answer.stderr


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_plans_its_ablations_without_the_tables_of_the_paper(study, tmp_path):
    answer = snakemake("ablations", "--configfile", f"config/{study}.yaml", folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    planned = jobs(answer)
    assert planned["figure"] == 8
    assert planned["needle"] == planned["continuation"] > 0
    assert not {"mqar", "lm_eval", "perplexity", "cache"} & set(planned)


def test_one_figure_needs_only_its_own_jobs(tmp_path):
    planned = jobs(snakemake("figures/figure4.svg", folder=tmp_path))
    assert set(planned) == {"figure", "mqar", "total"}


@pytest.mark.parametrize(
    ("found", "replaced", "named"),
    [
        ("betas: [0.0, 0.5, 1.0]", "betas: [0.0, 1.5]", "betas.1 = 1.5"),
        ("seed: 0\nbetas", "sead: 0\nbetas", "sead: unknown key"),
        ("backbones: [tiny]", "backbones: [huge]", "'huge' has no entry in backbones"),
    ],
)
def test_a_bad_configuration_is_refused_before_any_job(found, replaced, named, tmp_path):
    text = (ROOT / "config/smoke.yaml").read_text()
    assert found in text
    (tmp_path / "bad.yaml").write_text(text.replace(found, replaced, 1))
    answer = snakemake("all", "--configfile", "bad.yaml", folder=tmp_path)
    assert answer.returncode != 0
    assert named in answer.stderr
    assert sum("study:" in line for line in answer.stderr.splitlines()) == 1
    assert "rule" not in answer.stdout


def test_the_package_does_not_know_the_workflow():
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) snakemake", path.read_text(), re.MULTILINE), path
