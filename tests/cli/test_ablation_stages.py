"""The stages of the ablation study: from a checkpoint to rows that say what they are of."""

import json

import pandas as pd
import pytest
import torch
from transformers import AutoConfig

from recurformer.cli.main import main
from recurformer.evict.pyramidinfer import pyramid_lengths
from recurformer.heads.profile import HeadProfile
from recurformer.heads.select import score_rows
from recurformer.recover import budget
from recurformer.results.frames import COLUMNS

IDENTITY = {"model", "family", "method", "setting", "by", "trained", "seed", "ratio", "fall"}
TASK = {"hops": 4, "chains": 2, "pairs": 8}
STAGES = {
    "needle": (
        {"lengths": [500], "depths": [0, 1], "samples": 1, "tasks": ["passkey"]},
        {"task", "length", "depth", "sample", "correct", "queries"},
    ),
    "turns": ({"lengths": [1400], "documents": 1}, {"length", "document", "depth", "known", "correct", "queries"}),
    "continuation": (
        {"prompt": 60, "tokens": 40, "windows": 3},
        {"window", "position", "tokens", "negative_log_likelihood", "divergence", "recalled", "recalled_likelihood"},
    ),
    "written": (
        {"prompt": 60, "tokens": 8, "windows": 3},
        {"window", "agreed", "tokens", "negative_log_likelihood"},
    ),
    "hashhop": ({"samples": 4, "task": TASK}, {"variant", "sample", "correct", "hops", "distances"}),
}
CONVERTED = "heads/ra_i-kv_group-0/beta-0.75/mamba"


def rows_file(folder, stage):
    return folder / ("rows.parquet" if "hashhop" in stage else "rows.csv")


def read_rows(file):
    return pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file, keep_default_na=False)


def run_stage(world, stage, out, subject, *words, checkpoint="", **change):
    kind = "hashes" if stage == "hashhop" else "text"
    articles = [] if kind == "hashes" else ["--articles", str(world / "articles.parquet")]
    where = [str(world / f"{kind}{checkpoint}"), str(out), "--original", str(world / kind)]
    settings = json.dumps(STAGES[stage][0] | {"change": change})
    return main([stage, *where, *articles, "--name", "tiny", "--subject", subject, "--settings", settings, *words])


def test_tasks_of_lm_eval_say_what_they_are_of(world, tmp_path, capsys):
    """A converted model answers otherwise than its original; what evicts is measured elsewhere."""
    where = ["--original", str(world / "text"), "--articles", str(world / "articles.parquet"), "--name", "tiny"]
    tasks = ["--settings", "{names: [wikipedia], samples: 1, tokens: 60, change: {budgets: [0.5]}}", "--subject"]
    rows = {}
    for checkpoint, subject in {"": "original", "-converted": CONVERTED}.items():
        out = tmp_path / f"rows{checkpoint}.csv"
        assert main(["ablation-lm-eval", str(world / f"text{checkpoint}"), str(out), *where, *tasks, subject]) == 0
        rows[checkpoint] = read_rows(out)
        assert set(rows[checkpoint].columns) == {*COLUMNS["ablation_lm_eval"], "fall"}
    assert (rows[""].value != rows["-converted"].value).all()
    evicted = [*tasks, "evicted/streaming_llm"]
    assert main(["ablation-lm-eval", str(world / "text"), str(tmp_path / "x.csv"), *where, *evicted]) == 1
    assert "--subject evicted/streaming_llm: lm-eval makes the cache itself" in capsys.readouterr().err


OF_CONVERTED = ("-converted", CONVERTED, ["mixer", "mamba", 0.75, "ra_i", True])


@pytest.mark.parametrize(
    ("stage", "checkpoint", "subject", "named"),
    [
        *((stage, *OF_CONVERTED) for stage in STAGES),
        ("continuation", "", "original", ["original", "full", 1.0, "", False]),
        ("continuation", "", "original/trained", ["original", "full", 1.0, "", True]),
    ],
)
def test_rows_say_what_they_are_of(world, stage, checkpoint, subject, named, tmp_path):
    out = rows_file(tmp_path, stage)
    assert run_stage(world, stage, out, subject, "--seed", "3", checkpoint=checkpoint) == 0
    rows = read_rows(out)
    assert set(rows.columns) == STAGES[stage][1] | IDENTITY
    found = rows[["model", "family", "method", "setting", "by", "trained", "seed"]].drop_duplicates()
    assert found.to_numpy().tolist() == [["tiny", *named, 3]]
    assert rows.ratio.nunique() == 1 and (rows.ratio.iloc[0] == 1) == (checkpoint == "")


@pytest.mark.parametrize("stage", STAGES)
def test_one_process_measures_every_budget(world, stage, tmp_path):
    out = rows_file(tmp_path, stage)
    assert run_stage(world, stage, out, "evicted/streaming_llm", budgets=[0.25, 0.5]) == 0
    rows = read_rows(out)
    assert rows.family.unique().tolist() == ["eviction"] and rows.method.unique().tolist() == ["streaming_llm"]
    assert rows.setting.unique().tolist() == [0.25, 0.5]
    ratios = rows.groupby("setting").ratio.unique().map(lambda ratios: ratios.item())
    assert ratios.tolist() == pytest.approx([0.25, 0.5], rel=0.2)  # a whole number of tokens, and where they stood
    assert rows[rows.setting == 0.25].shape == rows[rows.setting == 0.5].shape


def test_pyramidinfer_keeps_what_the_paper_set(world, tmp_path, capsys):
    out, layers = tmp_path / "rows.csv", json.loads((world / "text/config.json").read_text())["num_hidden_layers"]
    assert run_stage(world, "continuation", out, "evicted/pyramidinfer_paper", as_printed=True) == 0
    rows = read_rows(out)
    assert (rows.method.unique().item(), rows.setting.unique().item()) == ("pyramidinfer_paper", 0.7)
    prompt, after = STAGES["continuation"][0]["prompt"], STAGES["continuation"][0]["tokens"]
    kept = sum(pyramid_lengths(prompt, layers)) / (layers * prompt)
    assert kept < rows.ratio.iloc[0] < (kept * prompt + after) / (prompt + after) + 0.2, "of what is read later all"
    for subject in ("evicted/streaming_llm", f"combined/beta-0.5/{'pyramidinfer_paper'}"):
        assert run_stage(world, "continuation", out, subject, as_printed=True) == 1
        assert f"change.as_printed: Table 2 has no setting of {subject}" in capsys.readouterr().err


def test_evictions_keep_as_much_as_others_held(world, tmp_path):
    held, out = tmp_path / "held.parquet", tmp_path / "rows.csv"
    pd.DataFrame({"ratio": [0.7, 0.8]}).to_parquet(held)
    match = ["--match", str(held)]
    assert run_stage(world, "continuation", out, "evicted/streaming_llm", *match, budgets=[0.5]) == 0
    held_by = read_rows(out).groupby("setting").ratio.first().to_dict()
    assert held_by == pytest.approx({0.5: 0.5, 0.75: 0.75}, rel=0.1)  # where the tokens stood counts too


def test_other_sizes_of_hashhop_stand_beside_that_of_the_training(world, tmp_path):
    sizes, usual = tmp_path / "sizes.parquet", tmp_path / "usual.parquet"
    where = [str(world / "hashes"), str(sizes), "--original", str(world / "hashes"), "--name", "tiny"]
    where += ["--subject", "original/trained"]
    settings = json.dumps({"sizes": [[4, 2], [2, 3]], "samples": 4, "task": TASK})
    assert main(["hashhop-sizes", *where, "--settings", settings]) == 0
    rows = read_rows(sizes)
    assert set(rows.columns) == STAGES["hashhop"][1] | IDENTITY | {"size", "form", "as_trained"}
    assert rows[~rows.as_trained][["hops", "size", "form"]].drop_duplicates().to_numpy().tolist() == [[2, 3, "tokens"]]
    assert run_stage(world, "hashhop", usual, "original/trained") == 0
    trained = rows[rows.as_trained].drop(columns=["size", "form", "as_trained"])
    pd.testing.assert_frame_equal(trained.reset_index(drop=True), read_rows(usual))


@pytest.mark.parametrize(("unit", "family"), [("kv_group", "mixer"), ("layer", "layers")])
def test_one_process_measures_every_share_of_replaced_heads(world, unit, family, tmp_path):
    """Half of a model is one layer, or the query groups of highest score; what is replaced by nothing holds nothing."""
    out, profile, scores = (tmp_path / name for name in ("rows.parquet", "profile.parquet", "scores.parquet"))
    HeadProfile(torch.full((1, 2, 4), 0.5), 4, 0.5, True, 2, 64).save(profile)
    score_rows("tiny", "echo", 0, torch.tensor([[4.0, 4, 1, 1], [3, 3, 2, 2]])).to_parquet(scores)
    files = ["--profile", str(profile), "--scores", str(scores)]
    assert run_stage(world, "hashhop", out, f"replaced/echo-{unit}-0/zero", *files, betas=[0.0, 0.5]) == 0
    rows = read_rows(out)
    named = rows[["family", "method", "by", "trained"]].drop_duplicates()
    assert named.to_numpy().tolist() == [[family, "zero", "echo", False]]
    assert rows.groupby("setting").ratio.first().to_dict() == {0.0: 1.0, 0.5: 0.5}


def test_a_mixer_that_learns_is_solved_where_it_is_measured(world, tmp_path):
    """Solved, it is nearer to the heads that it replaces than with its first weights; a window needs no text."""
    profile, divergence = tmp_path / "profile.parquet", {}
    HeadProfile(torch.full((1, 2, 4), 0.5), 4, 0.5, True, 2, 64).save(profile)
    for name, solved in (("solved", {"samples": 8, "tokens": 60}), ("first", None)):
        out, change = tmp_path / f"{name}.csv", {"betas": [0.5], "solved": solved}
        subject = "replaced/ra_i-kv_group-0/mamba"
        assert run_stage(world, "continuation", out, subject, "--profile", str(profile), **change) == 0
        rows = read_rows(out)
        assert rows[["family", "method", "by", "trained"]].drop_duplicates().to_numpy().tolist() == [
            ["mixer", "mamba", "ra_i", False]
        ]
        divergence[name] = rows.divergence.sum()
    assert divergence["solved"] < divergence["first"]


def test_a_budget_below_the_least_that_can_be_bought_gets_the_least(world, tmp_path):
    """Of 4 bits each, all tokens and what tells their scales hold over a quarter of the cache."""
    prices, out = tmp_path / "prices.parquet", tmp_path / "rows.csv"
    articles = ["--articles", str(world / "articles.parquet"), "--name", "tiny", "--settings", "{tokens: 100}"]
    assert main(["prices", str(world / "text"), str(prices), *articles]) == 0
    bought = ["priced/bits", "--prices", str(prices)]
    assert run_stage(world, "continuation", out, *bought, budgets=[0.0625, 0.25]) == 0
    (setting,), (ratio,) = (read_rows(out)[column].unique() for column in ("setting", "ratio"))
    assert 0.25 < setting < 0.5 and ratio == pytest.approx(setting, rel=0.2)


def test_prices_go_on_where_they_were_stopped(world, tmp_path, monkeypatch):
    read, price, stopping = [], budget.price, [False, False, True, False, False]

    def stopped_once(*arguments, **options):
        if stopping.pop(0):
            raise OSError("the machine went away")
        read.append(arguments[1])
        return price(*arguments, **options)

    monkeypatch.setattr(budget, "price", stopped_once)
    words = ["prices", str(world / "text"), str(tmp_path / "prices.csv"), "--articles", str(world / "articles.parquet")]
    words += ["--name", "tiny", "--settings", "{tokens: 100, needle_weight: 0, checked: 2}"]
    assert main(words) == 1 and not (tmp_path / "prices.csv").exists()
    assert main(words) == 0 and len(read) == budget.PRICED == 4
    assert [path.name for path in tmp_path.iterdir()] == ["prices.csv"]
    assert len(pd.read_csv(tmp_path / "prices.csv").dropna(subset="divergence")) == 2


def test_a_pooled_model_is_set_beside_its_original(world, tmp_path):
    pooled, out = tmp_path / "pooled", tmp_path / "rows.csv"
    assert main(["pool-kv", str(world / "text"), str(pooled), "--kv-heads", "1"]) == 0
    where = [str(pooled), str(out), "--original", str(world / "text"), "--articles", str(world / "articles.parquet")]
    words = ["--subject", "pooled/1", "--name", "tiny", "--settings", json.dumps(STAGES["continuation"][0])]
    assert main(["continuation", *where, *words]) == 0
    rows = read_rows(out)
    assert set(zip(rows.setting, rows.ratio, strict=True)) == {(0.5, 0.5)}


@pytest.mark.parametrize("mixer", ["mamba", "window"])
def test_perplexity_measures_the_model_that_the_conversion_writes(world, mixer, tmp_path):
    """It converts once more, as a converted model goes when its training ends."""
    heads, converted, out = (tmp_path / name for name in ("heads.json", "converted", "rows.csv"))
    heads.write_text('{"heads": [[0, 1], [0, 1, 2, 3]]}')
    how = ["--heads", str(heads), "--mixer", mixer, "--seed", "3", "--settings"]
    sizes = "mamba: {dt_rank: 4}, window: {window_tokens: 7, sink_tokens: 0}"
    assert main(["convert", str(world / "text"), str(converted), *how, f"{{{sizes}}}"]) == 0
    config = AutoConfig.from_pretrained(converted)
    assert (config.mixer, config.mamba_dt_rank, config.window_tokens, config.sink_tokens) == (mixer, 4, 7, 0)
    models = ["--before", str(world / "text"), "--trained", str(converted), "--name", "tiny", "--beta", "0.75"]
    articles = ["--articles", str(world / "articles.parquet")]
    assert main(["perplexity", str(out), *models, *articles, *how, f"{{tokens: 60, windows: 1, {sizes}}}"]) == 0
    rows = read_rows(out).pivot(index=["split", "article"], columns="stage", values="negative_log_likelihood")
    assert len(rows) and (rows.converted == rows.trained).all() and (rows.converted != rows.before).all()
