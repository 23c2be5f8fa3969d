"""The paper study, through a cache of the hub with small stand-ins, by the real workflow and without any network."""

import os
from copy import deepcopy
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file
from snakemake.utils import update_config

from recurformer.data.fetch import file_sha256
from recurformer.data.wikipedia import WIKIPEDIA_EXCERPT, clean_markup, read_pages
from recurformer.study import Study
from tests.paper.hub_cache import ROOT, STUDY, write_articles, write_hub_cache
from tests.workflow.dry_runs import link_workflow, snakemake

RESOURCES = Path(os.environ.get("RECURFORMER_RESOURCES", ROOT / "resources/downloads"))
DUMP = RESOURCES / WIKIPEDIA_EXCERPT.file_name
LINKED = "recorded LICENSE README.md pyproject.toml requirements.lock tests"
STUDY_FILES = ["config/paper.yaml", "tests/paper/sizes.yaml"]
WHOLE = os.environ.get("RECURFORMER_WHOLE_PAPER_STUDY")
P = "results/paper"
OURS = "heads/ra_i-kv_group-0/beta-{}/mamba"
SOME = [
    f"{P}/hashhop/llama2-7b/{OURS.format(0.9)}/seed-0/hashhop.parquet",
    f"{P}/language/qwen2-7b/{OURS.format(0.5)}/seed-0/tasks/hashhop/ablation_lm_eval.csv",
    f"{P}/language/qwen2-0.5b/{OURS.format(0.5)}/seed-0/perplexity.csv",
    f"{P}/tables/table5.md",
]
"""Every source and backbone, each kind of training and what is measured after it; the whole takes many minutes."""

needs_text = pytest.mark.skipif(not DUMP.is_file(), reason=f"there is no {DUMP}: run `make smoke` first")


@pytest.fixture(scope="module")
def articles():
    assert file_sha256(DUMP) == WIKIPEDIA_EXCERPT.sha256
    return [(title, clean_markup(markup)) for title, markup in read_pages(DUMP)]


@pytest.fixture(scope="module")
def home(tmp_path_factory, articles):
    """An HF_HOME that holds all models that the study asks for."""
    folder = tmp_path_factory.mktemp("home")
    write_hub_cache(folder / "hub", [text for _, text in articles])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory, articles):
    """A folder that holds links to the workflow, and the data set where the library looks before it asks the hub."""
    folder = tmp_path_factory.mktemp("study")
    write_articles(folder / "wikimedia/wikipedia", articles)
    return link_workflow(folder, *LINKED.split())


def run(folder, home, *words):
    """Run a part of the study; what Snakemake said."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment = inherited | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    return snakemake(folder, *words, "--cores", "2", "--configfile", *STUDY_FILES, environment=environment)


def leaves(block, path=""):
    for key, value in block.items():
        yield from leaves(value, f"{path}{key}.") if isinstance(value, dict) else [(f"{path}{key}", value)]


def test_only_sizes_are_overridden():
    """No key says where something comes from, which heads are replaced or how. No GPU is asked for."""
    overridden = deepcopy(STUDY)
    update_config(overridden, yaml.safe_load((ROOT / "tests/paper/sizes.yaml").read_text()))
    paper, ours = (dict(leaves(Study.read(study).model_dump())) for study in (STUDY, overridden))
    changed = {key for key, value in ours.items() if value != paper[key]}
    assert {key for key in changed if not isinstance(ours[key], int)} == {
        "device",
        "caches.measured",
        "language.tasks.limits",
        "language.tasks.names",
        "language.tasks.num_fewshot",
        "mqar.learning_rates",
        "mqar.seeds",
        "mqar.task.train",
        "mqar.task.test",
    }
    assert {key.split(".")[0] for key in changed} == {
        "device", "corpus", "caches", "distributed", "language", "hashhop", "mqar",
    }  # fmt: skip


@needs_text
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_study_runs_offline_from_the_cache(folder, home):
    answer = run(folder, home, *(["all"] if WHOLE else SOME))
    assert answer.returncode == 0, answer.stderr[-5000:]
    results = folder / P

    articles = pd.read_parquet(results / "corpus/articles.parquet")
    assert len(articles) == 40 and (articles.split == "validation").sum() == 4
    assert articles.text.str.len().min() >= STUDY["corpus"]["minimum_characters"]

    # steps of the paper's size would vanish in weights of 16 bits
    backbone = load_file(results / "backbones/llama2-7b/model.safetensors")
    trained = load_file(results / f"hashhop/llama2-7b/{OURS.format(0.9)}/seed-0/trained/model.safetensors")
    assert {values.dtype for values in backbone.values()} == {torch.bfloat16}
    assert {values.dtype for values in trained.values()} == {torch.float32}

    # the backbone and what became of it are measured in one type
    record = yaml.safe_load(
        (results / f"language/qwen2-0.5b/{OURS.format(0.5)}/seed-0/perplexity.run.json").read_text()
    )
    assert record["settings"]["dtype"] == STUDY["evaluation_dtype"]

    # heads are ranked on text for HashHop too (appendix B)
    record = yaml.safe_load((results / "hashhop/llama2-7b/heads/ra_i-kv_group-0/beta-0.9/heads.run.json").read_text())
    assert record["settings"]["profile"] == f"{P}/language/llama2-7b/profile.parquet"
    assert not list(results.glob("hashhop/*/profile.parquet"))

    trained = results / f"language/qwen2-7b/{OURS.format(0.5)}/seed-0"
    assert set(pd.read_csv(trained / "tasks/hashhop/ablation_lm_eval.csv").task) == {"hashhop"}
    table5 = pd.read_csv(results / "tables/table5.csv")
    assert set(table5.model) == set(STUDY["backbones"]) and table5.ours.notna().all()


@needs_text
@pytest.mark.slow
def test_a_backbone_that_is_not_in_the_cache_is_one_line(folder, tmp_path):
    answer = run(folder, tmp_path / "empty", f"{P}/backbones/llama2-7b", "--forcerun", "backbone")
    assert answer.returncode != 0
    said = [line for line in (folder / P / "logs/backbone/llama2-7b.log").read_text().splitlines() if line]
    assert len(said) == 1
    assert said[0].startswith("recurformer backbone: cannot read the model meta-llama/Llama-2-7b-hf at 01c7f73d")
