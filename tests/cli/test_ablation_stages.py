"""The stages of the ablation study: from a checkpoint to rows that say what they are of."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pandas as pd
import pytest
from transformers import Cache
from transformers.cache_utils import DynamicSlidingWindowLayer

from recurformer.backbones import make_random
from recurformer.cli.main import main
from recurformer.model.convert import convert
from recurformer.tasks.tokenizer import byte_tokenizer, hash_tokenizer

IDENTITY = {"model", "family", "method", "setting", "by", "trained", "seed", "ratio"}
TEXT = "One short sentence. Another one follows it, much longer than the first was! A third? Then it ends. " * 8
SHAPE = {"architecture": "llama", "hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "seed": 0}
STAGES = {
    "needle": (
        ["--lengths", "500", "--depths", "0", "1", "--samples", "1", "--tasks", "passkey"],
        {"task", "length", "depth", "sample", "correct", "queries"},
    ),
    "continuation": (
        ["--prompt", "60", "--tokens", "40", "--windows", "3"],
        {"window", "position", "tokens", "negative_log_likelihood"},
    ),
    "ablation-hashhop": (
        ["--samples", "4", "--task-hops", "4", "--task-chains", "2", "--task-pairs", "8"],
        {"variant", "sample", "correct", "hops"},
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Folders of a text model and a HashHop model, original and converted, and a file of articles."""
    folder = tmp_path_factory.mktemp("world")
    for name, tokenizer in (("text", byte_tokenizer()), ("hashes", hash_tokenizer())):
        model = make_random(**SHAPE, vocab_size=len(tokenizer))
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        convert(model, [[0, 1], [0, 1, 2, 3]], dt_rank=4).save_pretrained(folder / f"{name}-converted")
        tokenizer.save_pretrained(folder / f"{name}-converted")
    pd.DataFrame({"title": ["a"], "text": [TEXT], "split": ["validation"]}).to_parquet(folder / "articles.parquet")
    return folder


def run_stage(world, stage, out, *words, checkpoint=""):
    kind = "hashes" if stage == "ablation-hashhop" else "text"
    articles = [] if kind == "hashes" else ["--articles", str(world / "articles.parquet")]
    where = [str(world / f"{kind}{checkpoint}"), str(out), "--original", str(world / kind)]
    return main([stage, *where, *articles, *STAGES[stage][0], "--name", "tiny", *words])


@pytest.mark.parametrize("stage", STAGES)
def test_rows_say_what_they_are_of(world, stage, tmp_path):
    words = ["--family", "mixer", "--method", "mamba", "--setting", "0.75", "--by", "ra_i", "--trained", "True"]
    out = tmp_path / "rows.csv"
    assert run_stage(world, stage, out, *words, "--seed", "3", checkpoint="-converted") == 0
    rows = pd.read_csv(out)
    assert set(rows.columns) == STAGES[stage][1] | IDENTITY
    named = rows[["model", "family", "method", "setting", "by", "trained", "seed"]].drop_duplicates()
    assert named.to_numpy().tolist() == [["tiny", "mixer", "mamba", 0.75, "ra_i", True, 3]]
    assert rows.ratio.nunique() == 1 and rows.ratio.iloc[0] != 1


@pytest.mark.parametrize("stage", STAGES)
def test_the_original_is_what_is_measured_by_default(world, stage, tmp_path):
    out = tmp_path / "rows.csv"
    assert run_stage(world, stage, out) == 0
    rows = pd.read_csv(out, keep_default_na=False)
    named = rows[["family", "method", "setting", "by", "trained", "seed", "ratio"]].drop_duplicates()
    assert named.to_numpy().tolist() == [["original", "full", 1.0, "", False, 0, 1.0]]


@pytest.fixture
def baselines(monkeypatch):
    """An eviction method that keeps the last tokens, a share of 40; `calls` is what was asked of it."""
    calls = []

    @contextmanager
    def evicting(model):
        calls.append("on")
        yield
        calls.append("off")

    def make_cache(model, method, budget):
        calls.append((method, budget))
        layers = range(model.config.num_hidden_layers)
        return Cache(layers=[DynamicSlidingWindowLayer(sliding_window=round(40 * budget) + 1) for _ in layers])

    fake = SimpleNamespace(evicting=evicting, make_cache=make_cache)
    monkeypatch.setitem(sys.modules, "recurformer.baselines", fake)
    return calls


@pytest.mark.parametrize("stage", STAGES)
def test_one_process_measures_every_budget(world, stage, tmp_path, baselines):
    out = tmp_path / "rows.csv"
    assert run_stage(world, stage, out, "--evict", "last", "--budgets", "0.25", "0.5") == 0
    rows = pd.read_csv(out, keep_default_na=False)
    assert rows.family.unique().tolist() == ["eviction"] and rows.method.unique().tolist() == ["last"]
    assert rows.setting.unique().tolist() == [0.25, 0.5]
    smaller, larger = rows.groupby("setting").ratio.unique().map(lambda ratios: ratios.item())
    assert larger == pytest.approx(2 * smaller)
    assert rows[rows.setting == 0.25].shape == rows[rows.setting == 0.5].shape
    assert baselines[0] == "on" and baselines[-1] == "off" and set(baselines[1:-1]) == {("last", 0.25), ("last", 0.5)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--evict", "last"], "--evict and --budgets: give both or neither"),
        (["--budgets", "0.5"], "--evict and --budgets: give both or neither"),
        (
            ["--evict", "last", "--budgets", "0.5", "--family", "mixer"],
            "--evict last: it is measured on the original, not with --family mixer",
        ),
        (["--family", "magic"], "--family magic: Input should be"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(world, tmp_path, words, said, capsys):
    out = tmp_path / "rows.csv"
    assert run_stage(world, "continuation", out, *words) == 1
    assert capsys.readouterr().err.startswith(f"recurformer continuation: {said}")
    assert not out.exists()


@pytest.mark.parametrize(("pairs", "hops"), [(8, 4), (8, 8), (16, 4), (16, 8), (32, 4), (32, 8)])
def test_hashhop_takes_lengths_and_hops_that_nobody_trained(world, tmp_path, pairs, hops):
    """Both layouts, as many full chains as fill the list."""
    out = tmp_path / "rows.csv"
    sizes = ["--task-pairs", str(pairs), "--task-hops", str(hops), "--task-chains", str(pairs // hops)]
    assert run_stage(world, "ablation-hashhop", out, *sizes, checkpoint="-converted") == 0
    rows = pd.read_csv(out)
    assert rows.groupby("variant").size().to_dict() == {"official": 4, "paper": 4}
    assert (rows.hops == hops).all() and rows.correct.between(0, hops).all()
