"""A study whose settings change, on the command line or in its file, and a workflow that imports this one."""

import json
import re

import pytest
import yaml

from recurformer.study import Study
from tests.workflow.dry_runs import ROOT, snakemake

IMPORTING = f"""
configfile: "{ROOT}/config/smoke.yaml"

module recurformer:
    snakefile:
        "{ROOT}/Snakefile"
    config:
        config

use rule * from recurformer as theirs_*
"""


def test_what_the_command_line_changes_stands_apart():
    smoke = ("-n", "all", "--configfile", "config/smoke.yaml", "--config")
    answer = snakemake(ROOT, *smoke, "seed=010")
    outputs = re.findall(r"(?:results|figures)/\S+?(?=[,\s])", " ".join(re.findall(r"output: .*\n", answer.stdout)))
    assert len(outputs) > 50
    assert {output for output in outputs if "/smoke/seed-10/" not in output} == set()
    assert re.search(r"mqar/beta-0.0/lr-[\d.]+/seed-10/mqar.csv", answer.stdout)
    refused = snakemake(ROOT, *smoke, "device=gpu")
    assert refused.returncode == 1
    said = "study: --config changes device; give the changed study a name too: --config study=NAME"
    assert said in refused.stdout + refused.stderr


def words_of(value):
    """Every scalar as its word, as Snakemake hands on what stands within a nested value of `--config`."""
    if isinstance(value, dict):
        return {key: words_of(each) for key, each in value.items()}
    if isinstance(value, list):
        return [words_of(each) for each in value]
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize("study", ["smoke", "paper"])
def test_the_command_line_says_numbers_and_nothing_as_words(study):
    values = yaml.safe_load((ROOT / f"config/{study}.yaml").read_text())
    assert Study.read(words_of(values)) == Study.read(values)


def test_another_workflow_imports_this_one(tmp_path):
    (tmp_path / "Snakefile").write_text(IMPORTING)
    measured = "results/smoke/caches/complexity.csv"
    answer = snakemake(tmp_path, "--cores", "1", measured)
    assert answer.returncode == 0, answer.stderr
    assert "rule theirs_complexity:" in answer.stderr + answer.stdout
    assert (tmp_path / measured).exists()


def test_a_changed_setting_runs_again_what_takes_it_and_nothing_else(tmp_path):
    study = yaml.safe_load((ROOT / "config/smoke.yaml").read_text())
    files = [f"results/smoke/caches/{name}" for name in ("complexity.csv", "tiny/memory.csv")]

    def run(*more):
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
        answer = snakemake(
            ROOT, *files, "--directory", str(tmp_path), "--configfile", str(tmp_path / "study.yaml"), *more
        )
        assert answer.returncode == 0, answer.stderr
        return sorted(set(re.findall(r"rule (\w+):", answer.stdout + answer.stderr)))

    assert run("--cores", "2") == ["complexity", "memory"]
    assert run("-n") == []
    study["caches"]["sizes"] = {"growth_lengths": [64, 128]}  # of both
    assert run("-n") == ["complexity", "memory"]
    study["caches"]["sizes"] = {}
    study["betas"] = [0.0, 0.25]  # of the memory model alone
    assert run("-n") == ["memory"]
