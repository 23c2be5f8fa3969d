"""The examples of docs/extending.md, as they stand: one thing more of each kind, through the registries alone."""

import shutil
import sys

import pandas as pd
import pytest
import torch
import yaml
from transformers import DynamicCache

from recurformer import convert, digest, select_heads
from recurformer.claims.claim import STATEMENTS, Statement
from recurformer.claims.ledger import all_claims
from recurformer.cli.main import main
from recurformer.cli.stage import STAGES
from recurformer.data.backbones import make_random
from recurformer.evict import EVICTIONS, evicting, make_cache
from recurformer.heads.profile import HeadProfile
from recurformer.heads.select import SELECTORS
from recurformer.model import families
from recurformer.model.config import define_config
from recurformer.model.families import FAMILIES
from recurformer.model.mixers import MIXERS
from recurformer.model.modeling import BACKBONES, define
from recurformer.render.figures import FIGURES
from recurformer.render.registry import Entry
from recurformer.results.frames import COLUMNS
from tests.evict.test_evicting_cache import held_slots
from tests.snippets import ROOT, blocks
from tests.workflow.dry_runs import DryRun

BLOCKS = {
    first.removeprefix("# "): code for first, _, code in (b.code.partition("\n") for b in blocks("docs/extending.md"))
}
"""File -> the code that the example adds to it."""
TOKENS = torch.randint(1, 64, (2, 12), generator=torch.Generator().manual_seed(0))


def added(file):
    """The names that the example's code has in the module that it stands in."""
    module = file.removeprefix("src/").removesuffix(".py").replace("/", ".")
    names = dict(vars(sys.modules[module])) if module in sys.modules else {"__package__": module.rpartition(".")[0]}
    exec(compile(BLOCKS[file], file, "exec"), names)
    return names


@pytest.fixture
def model():
    return make_random("qwen2", heads=4, kv_heads=2).eval()


def test_every_file_of_an_example_exists_or_is_new():
    new = {"src/recurformer/model/mixer_own.py", "src/recurformer/render/figures_pairs.py"}
    assert {file for file in BLOCKS if not (ROOT / file).exists()} == new


def test_a_mixer(model, monkeypatch):
    monkeypatch.setitem(MIXERS, "own", added("src/recurformer/model/mixer_own.py")["OwnMixer"])
    converted = convert(model, [[0, 1], [2, 3]], "own").eval()
    cache = DynamicCache(config=converted.config)
    with torch.no_grad():
        whole = converted(TOKENS).logits
        pieces = [converted(part, past_key_values=cache).logits for part in TOKENS.split([5, 1, 6], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole)


def test_a_backbone_family(monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", families.FAMILIES.copy())
    added("src/recurformer/model/families.py")
    family = families.FAMILIES["arcee"]
    monkeypatch.setitem(FAMILIES, "arcee", family)
    monkeypatch.setitem(BACKBONES, "arcee", define(family, define_config(family)))
    original = make_random("arcee", heads=4, kv_heads=2, initializer_range=0.3).eval()
    none, wide = convert(original, [[], []]), convert(original, [[0, 1], [0, 2, 3]], "window", window_tokens=12)
    cache = DynamicCache(config=wide.config)
    with torch.no_grad():
        assert torch.equal(none(TOKENS).logits, original(TOKENS).logits)
        pieces = [wide(part, past_key_values=cache).logits for part in TOKENS.split([5, 1, 6], 1)]
        torch.testing.assert_close(torch.cat(pieces, 1), original(TOKENS).logits, rtol=1e-3, atol=1e-4)


def test_an_eviction_method(model, monkeypatch):
    monkeypatch.setitem(EVICTIONS, "newest", added("src/recurformer/evict/methods.py")["Newest"])
    cache = make_cache(model, "newest", 5)
    with torch.no_grad():
        evicting(model)(TOKENS[:1], past_key_values=cache)
    assert all(slots == [7, 8, 9, 10, 11] for layer in held_slots(cache) for slots in layer.values())


def test_a_selector(monkeypatch):
    monkeypatch.setitem(SELECTORS, "depth", added("src/recurformer/heads/select.py")["depth_scores"])
    profile = HeadProfile(torch.rand(3, 2, 4), window=2, threshold=0.5, exclude_first=True, kv_heads=2, tokens=8)
    assert select_heads(profile, 0.5, by="depth") == [[], [0, 1, 2, 3]]


def test_a_claim(monkeypatch):
    ((name, entry),) = yaml.safe_load(BLOCKS["src/recurformer/claims/statements/caches.yaml"]).items()
    monkeypatch.setitem(STATEMENTS, name, Statement(**entry))
    (claim,) = (claim for claim in all_claims() if claim.id == name)
    assert (claim.tolerance, claim.judge is not None) == ("0.1 at most", True)


def test_a_figure(monkeypatch, tmp_path):
    monkeypatch.setitem(FIGURES, "pairs", added("src/recurformer/render/figures_pairs.py")["pairs"])
    measured = str(ROOT / "recorded/cpu/measurements/mqar.parquet")
    assert main(["figure", "pairs", measured, "--out", str(tmp_path / "pairs.svg")]) == 0
    assert "β = 0.75" in (tmp_path / "pairs.svg").read_text()
    entry = yaml.safe_load(BLOCKS["src/recurformer/render/registry.yaml"])["figures"]["pairs"]
    assert Entry(**entry).kinds == ["mqar"] and "mqar" in COLUMNS


def test_a_stage(monkeypatch, tmp_path):
    monkeypatch.setitem(COLUMNS, "article_lengths", ("title", "split", "characters"))
    texts = pd.DataFrame({"title": list("ab"), "text": ["long enough", "short"], "split": "train"})
    texts.to_parquet(tmp_path / "articles.parquet")
    try:
        added("src/recurformer/cli/prepare.py")
        rows = tmp_path / "article_lengths.csv"
        assert main(["article-lengths", str(tmp_path / "articles.parquet"), str(rows)]) == 0
    finally:
        STAGES.pop("article-lengths", None)
    assert pd.read_csv(rows)["characters"].tolist() == [11, 5]


def test_its_rule_is_planned(monkeypatch, tmp_path):
    for name in ("Snakefile", "workflow", "config", "profiles"):
        path = ROOT / name
        shutil.copytree(path, tmp_path / name) if path.is_dir() else shutil.copy(path, tmp_path)
    with (tmp_path / "workflow/rules/prepare.smk").open("a") as rules:
        rules.write("\n\n" + BLOCKS["workflow/rules/prepare.smk"])
    target = "results/smoke/corpus/article_lengths.csv"
    monkeypatch.setattr(digest, "code_digest", lambda place: "")  # the code stands in no file
    try:
        added("src/recurformer/cli/prepare.py")  # in this process, of which the dry run is a fork
        planned = DryRun(tmp_path, target, "--configfile", "config/smoke.yaml")
    finally:
        STAGES.pop("article-lengths", None)
    assert "recurformer article-lengths results/smoke/corpus/articles.parquet" in planned.out + planned.err
    assert [job.resources["runtime"] for job in planned.jobs if job.rule == "article_lengths"] == ["60"]
