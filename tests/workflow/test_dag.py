"""The DAG of every study, by dry runs: what is asked for is planned, and nothing starts from a bad configuration."""

import re
import subprocess
import sys
from collections import Counter
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
    recovery = {"smoke": (1, 1), "default": (1, 1), "recovery": (1, 2)}.get(study, (0, 0))
    assert (planned["table"] - 5, planned["figure"] - 6) == recovery
    on_a_device = {"device_tests": 1, "cache_peak": 3, "speed": 6} if study == "gpu" else {}
    assert {rule: planned[rule] for rule in ("device_tests", "cache_peak", "speed") if rule in planned} == on_a_device
    below = "" if study == "default" else f"{study}/"
    assert f"results/{below}tables/table4.csv" in answer.stdout + answer.stderr
    assert f"figures/{below}figure4.svg" in answer.stdout + answer.stderr


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_plans_its_ablations_without_the_tables_of_the_paper(study, tmp_path):
    answer = snakemake("ablations", "--configfile", f"config/{study}.yaml", folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    planned = jobs(answer)
    assert planned["figure"] == 9
    recovered = {"smoke": 2, "default": 2, "recovery": 2}.get(study, 0)
    assert planned["needle"] == planned["continuation"] > 0
    trained = {"default": 2, "recovery": 2, "gpu": 26, "paper": 78}  # models that read text, originals too
    assert planned.get("ablation_lm_eval", 0) == trained.get(study, 0) + recovered
    assert not {"mqar", "lm_eval", "perplexity", "cache"} & set(planned)


PAPER = {
    "all": 1,
    "attention_map": 3,
    "backbone": 3,
    "baseline": 3,
    "cache": 3,
    "claims": 1,
    "complexity": 1,
    "contribution": 3,
    "convert": 24,
    "corpus": 1,
    "figure": 6,
    "hashhop": 18,
    "influence": 3,
    "lm_eval": 6,
    "longest_input": 36,
    "memory": 3,
    "mqar": 72,
    "perplexity": 6,
    "profile_text": 3,
    "pyramidinfer": 1,
    "select": 24,
    "sink": 3,
    "table": 5,
    "train_hashhop": 18,
    "train_text": 6,
    "total": 253,
}
"""By rule: 3 backbones, 6 shares on HashHop and 2 on text; 6 shares, 4 learning rates and 3 seeds of MQAR; 2 ways to
read the longest input."""


def test_the_paper_study_has_these_jobs(tmp_path):
    answer = snakemake("all", "--configfile", "config/paper.yaml", folder=tmp_path)
    planned = jobs(answer)
    assert planned == PAPER
    asked = re.findall(r"^rule (\w+):\n(?:    .*\n)*?    resources: .*gpu=[14]", answer.stdout, re.MULTILINE)
    assert Counter(asked)["train_hashhop"] == PAPER["train_hashhop"]
    assert not {"select", "table", "convert"} & set(asked)


@pytest.mark.parametrize(("study", "asked"), [("default", 0), ("smoke", 0), ("gpu", 3 * 6 * 2), ("paper", 3 * 6 * 2)])
def test_the_longest_input_is_measured_where_the_study_asks_for_it(study, asked, tmp_path):
    """Three backbones at six shares by two protocols; where it is not asked, the tables show the memory model's."""
    folder = "results" if study == "default" else f"results/{study}"
    answer = snakemake(f"{folder}/tables/table4.csv", "--configfile", f"config/{study}.yaml", folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert jobs(answer).get("longest_input", 0) == asked


def test_one_figure_needs_only_its_own_jobs(tmp_path):
    planned = jobs(snakemake("figures/figure4.svg", folder=tmp_path))
    assert set(planned) == {"figure", "mqar", "total"}


MEASURED = "perplexity lm-eval hashhop influence needle continuation ablation-hashhop ablation-lm-eval hashhop-sizes"
"""Stages that measure trained models."""


def test_trained_models_and_their_originals_are_measured_in_the_type_of_the_study(tmp_path):
    answer = snakemake("all", "ablations", "--printshellcmds", "--configfile", "config/paper.yaml", folder=tmp_path)
    commands = re.findall(r"^ +recurformer (\S+)((?:.*\\\n)*.*)", answer.stdout + answer.stderr, re.MULTILINE)
    typed = {stage: {"--dtype bfloat16" in words for name, words in commands if name == stage} for stage, _ in commands}
    assert {stage for stage, found in typed.items() if found == {True}} == set(MEASURED.split())
    assert all(found == {False} for stage, found in typed.items() if stage not in MEASURED.split())


def test_the_paper_study_shows_the_head_of_figure_2(tmp_path):
    """The 18th head of the 24th layer of Llama2-7B; no head is named for the others."""
    answer = snakemake("figures/paper/figure2.svg", "-p", "--configfile", "config/paper.yaml", folder=tmp_path)
    named = {
        re.search(r"--name (\S+)", command)[1]: re.findall(r"--(?:layer|head) \d+", command)
        for command in answer.stdout.split("recurformer ")
        if command.startswith("sink ")
    }
    assert named == {"llama2-7b": ["--layer 23", "--head 17"], "qwen2-0.5b": [], "qwen2-7b": []}


def test_a_backbone_too_large_for_one_card_is_trained_over_several(tmp_path):
    large, small = (f"results/paper/language/{name}/beta-0.5/seed-0/trained" for name in ("llama2-7b", "qwen2-0.5b"))
    answer = snakemake(large, small, "--printshellcmds", "--configfile", "config/paper.yaml", folder=tmp_path)
    commands = [block for block in answer.stdout.split("recurformer ") if block.startswith("train ")]
    assert len(commands) == 2
    lines = [command.partition("\n")[0] for command in commands]
    assert all(("--distributed-processes 4" in line) == (large in line) for line in lines)


def test_a_bad_configuration_is_refused_before_any_job(tmp_path):
    text = (ROOT / "config/smoke.yaml").read_text()
    (tmp_path / "bad.yaml").write_text(text.replace("betas: [0.0, 0.5, 1.0]", "betas: [0.0, 1.5]", 1))
    answer = snakemake("all", "--configfile", "bad.yaml", folder=tmp_path)
    assert answer.returncode != 0
    assert "betas.1 = 1.5" in answer.stderr
    assert sum("study:" in line for line in answer.stderr.splitlines()) == 1
    assert "rule" not in answer.stdout


def test_the_package_does_not_know_the_workflow():
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) snakemake", path.read_text(), re.MULTILINE), path
