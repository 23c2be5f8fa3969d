"""A study that the command line changes, and a workflow that imports this one."""

import re

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


def test_another_workflow_imports_this_one(tmp_path):
    (tmp_path / "Snakefile").write_text(IMPORTING)
    measured = "results/smoke/caches/complexity.csv"
    answer = snakemake(tmp_path, "--cores", "1", measured)
    assert answer.returncode == 0, answer.stderr
    assert "rule theirs_complexity:" in answer.stderr + answer.stdout
    assert (tmp_path / measured).exists()
