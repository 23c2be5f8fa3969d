"""The paper study, through a cache of the hub with small stand-ins, by the real workflow and without any network."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file

from recurformer.corpora.markup import clean_markup
from recurformer.corpora.package import file_sha256
from recurformer.corpora.wikipedia import WIKIPEDIA_EXCERPT, read_pages
from tests.paper.hub_cache import ROOT, STUDY, write_hub_cache

RESOURCES = Path(os.environ.get("RECURFORMER_RESOURCES", ROOT / "resources/downloads"))
DUMP = RESOURCES / WIKIPEDIA_EXCERPT.file_name
LINKED = "Snakefile workflow config environment.yml recorded LICENSE README.md pyproject.toml requirements.lock tests"
STUDY_FILES = ["config/paper.yaml", "tests/paper/sizes.yaml"]
WHOLE = os.environ.get("RECURFORMER_WHOLE_PAPER_STUDY")
P = "results/paper"
SOME = [
    f"{P}/hashhop/llama2-7b/beta-0.9/seed-0/hashhop.csv",
    f"{P}/language/qwen2-7b/beta-0.5/seed-0/lm_eval.csv",
    f"{P}/language/qwen2-0.5b/beta-0.5/seed-0/perplexity.csv",
    f"{P}/language/qwen2-0.5b/influence.parquet",
    f"{P}/tables/table5.md",
    "figures/paper/figure6.svg",
]
"""Every source and backbone, each kind of training and what is measured after it; the whole takes many minutes."""

needs_text = pytest.mark.skipif(not DUMP.is_file(), reason=f"there is no {DUMP}: run `make smoke` first")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """An HF_HOME that holds all that the study asks for."""
    assert file_sha256(DUMP) == WIKIPEDIA_EXCERPT.sha256
    folder = tmp_path_factory.mktemp("home")
    write_hub_cache(folder / "hub", [(title, clean_markup(markup)) for title, markup in read_pages(DUMP)])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that holds nothing but links to the workflow."""
    folder = tmp_path_factory.mktemp("study")
    for name in LINKED.split():
        (folder / name).symlink_to(ROOT / name)
    return folder


def snakemake(folder, home, *words):
    """Run a part of the study; what Snakemake said."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [sys.executable, "-m", "snakemake", *words, "--cores", "2", "--configfile", *STUDY_FILES]
    environment = inherited | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_only_sizes_are_overridden():
    """No key of the override says where something comes from, which heads are replaced or by which method."""
    sizes = yaml.safe_load((ROOT / "tests/paper/sizes.yaml").read_text())
    assert not set(sizes) & {"study", "seed", "betas", "backbones", "selection", "mamba", "caches"}
    changed = {}

    def walk(own, paper, path):
        for key, value in own.items():
            if isinstance(value, dict):
                walk(value, paper[key], f"{path}{key}.")
            elif type(value) is not type(paper[key]) or not isinstance(value, int):
                changed[f"{path}{key}"] = value

    walk(sizes, STUDY, "")
    lists_of_sizes = {"mqar.task.train", "mqar.task.test", "ablations.needle.lengths"}
    assert set(changed) - lists_of_sizes == {
        "language.tasks.names",
        "mqar.learning_rates",
        "mqar.seeds",
        "ablations.evictions",
        "ablations.needle.depths",
        "ablations.needle.tasks",
    }


@needs_text
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_study_runs_offline_from_the_cache(folder, home):
    answer = snakemake(folder, home, *(["all"] if WHOLE else SOME))
    assert answer.returncode == 0, answer.stderr[-5000:]
    results = folder / P

    articles = pd.read_parquet(results / "corpus/articles.parquet")
    assert len(articles) == 40 and (articles.split == "validation").sum() == 4
    assert articles.text.str.len().min() >= STUDY["corpus"]["minimum_characters"]

    # steps of the paper's size would vanish in weights of 16 bits
    backbone = load_file(results / "backbones/llama2-7b/model.safetensors")
    trained = load_file(results / "hashhop/llama2-7b/beta-0.9/seed-0/trained/model.safetensors")
    assert {values.dtype for values in backbone.values()} == {torch.float16}
    assert {values.dtype for values in trained.values()} == {torch.float32}

    # heads are ranked on text for HashHop too (appendix B)
    record = yaml.safe_load((results / "hashhop/llama2-7b/beta-0.9/heads.run.json").read_text())
    assert record["settings"]["profile"] == f"{P}/language/llama2-7b/profile.parquet"
    assert not list(results.glob("hashhop/*/profile.parquet"))

    tasks = pd.read_csv(results / "language/qwen2-7b/beta-0.5/seed-0/lm_eval.csv").task
    assert set(tasks) == {"hashhop", "passkey", "wikipedia"}
    assert set(pd.read_csv(results / "tables/table5.csv").columns) >= {"model"}


@needs_text
@pytest.mark.slow
def test_a_backbone_that_is_not_in_the_cache_is_one_line(folder, tmp_path):
    answer = snakemake(
        folder, tmp_path / "empty", f"{P}/backbones/llama2-7b", "--forcerun", "backbone", "--retries", "0"
    )
    assert answer.returncode != 0
    said = [line for line in (folder / P / "logs/backbone/llama2-7b.log").read_text().splitlines() if line]
    assert len(said) == 1
    assert said[0].startswith("recurformer backbone: meta-llama/Llama-2-7b-hf at 01c7f73d")
