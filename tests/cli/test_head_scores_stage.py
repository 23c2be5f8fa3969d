"""Scores of heads from a checkpoint on disk to a choice of heads."""

import json
import shlex

import pandas as pd
import pytest
import torch

from recurformer import HeadProfile
from recurformer.cli.main import main
from recurformer.heads.scores import SCORES
from recurformer.heads.select import SELECTORS, rank_heads, score_rows

LAYERS, HEADS, KV_HEADS = 2, 4, 2


@pytest.fixture(scope="module")
def place(world, tmp_path_factory):
    """A folder with a head profile; the models and the articles lie in PLACE/world."""
    folder = tmp_path_factory.mktemp("scores")
    (folder / "world").symlink_to(world)
    rr = torch.rand(3, LAYERS, HEADS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    HeadProfile(rr, 4, 0.5, True, KV_HEADS, 64).save(folder / "profile.parquet")
    return folder


def run(place, *words) -> int:
    return main([word.replace("PLACE", str(place)) for line in words for word in shlex.split(line)])


SIZES = "minimum_accuracy: 0, samples: 2, repeated_tokens: 16, window_tokens: 8"
TEXT = "--articles PLACE/world/articles.parquet", f"{SIZES}, tokens: 64"
TASK = "", f"{SIZES}, task: {{hops: 4, pairs: 8}}"


@pytest.mark.parametrize(("model", "text", "sizes"), [("text", *TEXT), ("hashes", *TASK)])
def test_all_rankings_come_into_one_file(place, model, text, sizes):
    target = place / f"{model}.parquet"
    command = f"head-scores PLACE/world/{model} {target} --name tiny --seed 4 {text}"
    command += " --random-seeds 4 5 6 --profile PLACE/profile.parquet"
    assert run(place, command, f"--settings '{{{sizes}}}'") == 0
    frame = pd.read_parquet(target)
    assert list(frame) == ["model", "by", "seed", "layer", "head", "score"]
    counts = frame.groupby("by").size()
    assert dict(counts) == {by: LAYERS * HEADS * (3 if by == "random" else 1) for by in (*SELECTORS, *SCORES)}
    assert sorted(frame[frame["by"] == "random"].seed.unique()) == [4, 5, 6]
    assert set(frame.model) == {"tiny"} and frame.score.notna().all()
    measured = frame[frame["by"].isin(SCORES)]
    assert (measured.groupby("by").score.std() > 0).all()
    again = place / "again.parquet"
    assert run(place, command.replace(str(target), str(again)), f"--settings '{{{sizes}, by: [echo, retrieval]}}'") == 0
    both = pd.read_parquet(again).merge(frame, on=["by", "seed", "layer", "head"])
    assert (both.score_x == both.score_y).all() and {"echo", "retrieval"} <= set(both["by"])


def test_select_takes_measured_scores(place):
    scores = torch.tensor([[0.0, -1.0, -4.0, -2.0], [-3.0, -3.0, -1.0, 0.0]])
    target, chosen = place / "scores.parquet", place / "heads.json"
    score_rows("tiny", "retrieval", 0, scores).to_parquet(target)
    command = f"select PLACE/profile.parquet {chosen} --beta 0.5 --scores {target}"
    for unit in ("kv_group", "head", "layer"):
        assert run(place, command, f"--settings '{{by: retrieval, unit: {unit}}}'") == 0
        assert json.loads(chosen.read_text())["heads"] == rank_heads(scores, KV_HEADS, 0.5, unit)


def test_scores_that_do_not_fit_are_refused_in_one_line(place, capsys):
    command = "select PLACE/profile.parquet PLACE/none.json --beta 0.5 --scores PLACE/few.parquet --settings"
    score_rows("tiny", "retrieval", 0, torch.zeros(LAYERS, 3)).to_parquet(place / "few.parquet")
    for by, said in (("echo", "holds no scores 'echo'"), ("retrieval", "(2, 3) layers and heads, profile of (2, 4)")):
        assert run(place, command, f"'{{by: {by}}}'") == 1
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


def test_settings_of_ra_i_are_compared(place):
    target = place / "settings.csv"
    command = f"ra-i-settings PLACE/world/text {target} --articles PLACE/world/articles.parquet --name tiny --settings"
    others = "{windows: [4, 8, 16], thresholds: [0.3, 0.5], betas: [0.25, 0.5], units: [head, layer]}"
    assert run(place, command, f"'{{samples: 4, tokens: 64, window: 8, others: {others}}}'") == 0
    frame = pd.read_csv(target)
    assert len(frame) == 3 * 2 * 2 * 2
    assert (frame.shared <= frame.selected).all() and frame.rank_correlation.between(-1, 1).all()
    default = frame[(frame.window == 8) & (frame.threshold == 0.5)]
    assert (default.shared == default.selected).all()
    assert frame[frame.threshold == 0.3].rank_correlation.min() < 1
