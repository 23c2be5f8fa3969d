"""A recovery: equally many tokens by every recipe, measured on the way, and resumable; and what is measured."""

import math
from functools import cache
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from scipy.stats import ttest_1samp

from recurformer import convert
from recurformer.data.datasets import WindowDataset
from recurformer.recover import pair
from recurformer.recover.adapt import quality_of
from recurformer.recover.kept import KeptSteps
from recurformer.recover.pair import quality_rows
from recurformer.recover.run import RecoveryCurve, converted_by, recover
from recurformer.study import Mamba, Recipe, Training
from recurformer.train.trainer import train
from tests.model.tiny_models import HEADS, MAMBA, make_backbone, tokens

WINDOWS, HELD_OUT = tokens(32, 16), tokens(3, 16, seed=1)
TRAINING = Training(steps=12, batch_size=4, learning_rate=1e-2, weight_decay=0.0, log_every=1, save_every=2)
RECIPES = {
    "paper": Recipe(),
    "calibrated": Recipe(calibrate_windows=10),
    "plus": Recipe(
        calibrate_windows=8, start="linear", transfer_steps=4, trained="attention", language_model_share=0.0
    ),
    "closed form": Recipe(calibrate_windows=32, steps=8),
}


@pytest.fixture(scope="module")
def original():
    return make_backbone("llama_gqa_tied")


def run(original, folder, recipe, bf16=False):
    """The model that has learnt, its curve, the rows of its last training, and the errors of its layers."""
    torch.manual_seed(1)
    converted = convert(original, HEADS["mixed"], **MAMBA).eval()
    kept = KeptSteps(folder / "steps", (original, converted), (HELD_OUT, WINDOWS), recipe=recipe.model_dump())
    curve = RecoveryCurve(original, converted, HELD_OUT, kept, halvings=3)
    recovered = recover(original, converted, WINDOWS, recipe, curve, training=TRAINING, folder=folder, bf16=bf16)
    return converted, curve.rows, recovered.losses["distil"], recovered.errors


@pytest.fixture(scope="module")
def whole(original, tmp_path_factory):
    """What a run by the recipe of a name gives that nobody disturbs, each made once."""
    return cache(lambda name: run(original, tmp_path_factory.mktemp("whole"), RECIPES[name]))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_sees_the_same_tokens(original, whole, name):
    recipe, (model, rows, logged, errors) = RECIPES[name], whole(name)
    assert rows.tokens.min() == 0
    steps = recipe.steps or TRAINING.steps
    assert steps * 4 * 16 <= rows.tokens.max() + 3 * 16 <= steps * 4 * 16 + 3 * 16
    assert rows.groupby("tokens").window.nunique().eq(3).all()
    assert rows.groupby("tokens").seconds.first().is_monotonic_increasing
    last = rows[rows.tokens == rows.tokens.max()].reset_index(drop=True)
    expected = quality_rows(original, model, HELD_OUT)
    pd.testing.assert_frame_equal(last[expected.columns], expected)
    assert (len(logged) > 0) == (name != "closed form")
    replaced = [layer for layer, heads in enumerate(HEADS["mixed"]) if heads]
    assert errors.layer.tolist() == (replaced if recipe.calibrate_windows else [])


def test_points_lie_at_halvings_of_the_last_training(whole):
    rows = whole("calibrated")[1]
    # 10 windows take the place of 3 of 12 steps; three quarters of the other 9 are 7, half is 5, a quarter 3
    assert sorted(set(rows.tokens)) == [0, 160, *(160 + 64 * step for step in (3, 5, 7, 9))]


def test_the_fall_is_that_of_the_held_out_loss_over_the_last_quarter(whole):
    """The upper end of the interval of paired differences; without a training there is none."""
    rows = whole("calibrated")[1]
    losses = rows.pivot(index="window", columns="tokens", values="negative_log_likelihood")
    fall = (losses[160 + 64 * 7] - losses[160 + 64 * 9]).to_numpy()
    high = ttest_1samp(fall, 0).confidence_interval(0.95).high
    assert RecoveryCurve.fall.fget(SimpleNamespace(rows=rows)) == pytest.approx(high)
    untrained = rows[rows.stage != rows.stage.iloc[-1]]
    assert math.isnan(RecoveryCurve.fall.fget(SimpleNamespace(rows=untrained)))


def test_without_a_closed_form_it_is_the_papers_training(original, whole, tmp_path):
    learnt = whole("paper")[0].state_dict()
    torch.manual_seed(1)
    converted = convert(original, HEADS["mixed"], **MAMBA)
    train(converted, WindowDataset(WINDOWS), output_dir=tmp_path, **TRAINING.model_dump())
    assert all(learnt[name].equal(tensor) for name, tensor in converted.state_dict().items())


@pytest.mark.parametrize("name", ["calibrated", "plus"])
@pytest.mark.parametrize("item", [2, 7, 20])
def test_a_killed_run_ends_with_the_same_bytes(original, whole, tmp_path, name, item, monkeypatch):
    undisturbed, curve, _, errors = whole(name)
    get = WindowDataset.__getitem__

    def killed(dataset, index):
        if index == item:
            raise KeyboardInterrupt
        return get(dataset, index)

    with monkeypatch.context() as patch:
        patch.setattr(WindowDataset, "__getitem__", killed)
        with pytest.raises(KeyboardInterrupt):
            run(original, tmp_path, RECIPES[name])
    again, resumed, _, found = run(original, tmp_path, RECIPES[name])
    assert all(undisturbed.state_dict()[key].equal(tensor) for key, tensor in again.state_dict().items())
    pd.testing.assert_frame_equal(curve.drop(columns="seconds"), resumed.drop(columns="seconds"))
    pd.testing.assert_frame_equal(errors, found)


def test_points_are_measured_in_the_type_of_the_weights(original, tmp_path, monkeypatch):
    """Mixed precision is the training's, and ends with it."""
    monkeypatch.setattr("recurformer.train.trainer.fast_bf16", lambda device: True)
    model, rows, *_ = run(original, tmp_path, RECIPES["calibrated"], bf16=True)
    last = rows[rows.tokens == rows.tokens.max()]
    expected = quality_rows(original, model, HELD_OUT)
    assert last.divergence.tolist() == expected.divergence.tolist()
    assert "forward" not in model.__dict__


def test_more_windows_than_there_are(original, tmp_path):
    with pytest.raises(ValueError, match="calibrate_windows: 33 were asked for, the text has 32"):
        run(original, tmp_path, Recipe(calibrate_windows=33))
    with pytest.raises(ValueError, match="steps: 3 of 4 windows are fewer than the closed form and transfer take"):
        run(original, tmp_path, Recipe(calibrate_windows=8, transfer_steps=2, steps=3))


def test_a_recipe_may_name_the_sizes_of_its_mamba_block(original):
    recipe = Recipe(mamba=Mamba(d_state=9, expand=1, dt_rank=2))
    model, others = (converted_by(one, original, HEADS["mixed"], 0, **MAMBA) for one in (recipe, Recipe()))
    shapes = {tuple(value.shape) for name, value in model.named_parameters() if name.endswith("A_log")}
    assert {states for _, states in shapes} == {9} and model.config.mamba_dt_rank == 2
    assert others.config.mamba_d_state == MAMBA["d_state"] != 9


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize(
    ("backbone", "settings"),
    [("llama_gqa_tied", {}), ("granite", {}), ("gemma3_text", {"final_logit_softcapping": 5.0})],
)
def test_each_window_is_measured_over_its_predicted_tokens(backbone, settings, changed, monkeypatch):
    """Of pieces of a window, whose logits are the model's own."""
    monkeypatch.setattr(pair, "PLACES", 4)
    original = make_backbone(backbone, **settings)
    model = convert(original, HEADS["mixed"], **MAMBA).eval() if changed else original
    rows = quality_rows(original, model, tokens(3, 12))
    assert rows.window.tolist() == [0, 1, 2] and set(rows.predicted) == {11}
    for row, window in zip(rows.itertuples(), tokens(3, 12), strict=True):
        with torch.no_grad():
            loss = model(window[None], labels=window[None]).loss.item()
            log_p, log_q = (one(window[None]).logits[0, :-1].log_softmax(-1) for one in (original, model))
        assert row.negative_log_likelihood == pytest.approx(loss, rel=1e-5)
        expected = (log_p.exp() * (log_p - log_q)).sum(-1).mean().item()
        assert row.divergence == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert (rows.divergence > 0).all() == changed


def test_no_divergence_is_below_zero():
    rows = {"window": [0, 1], "predicted": 7, "negative_log_likelihood": 1.0, "divergence": [-1e-9, -2e-9]}
    found = quality_of(pd.DataFrame(rows))
    assert (found["divergence"], found["divergence_interval"]) == (0, [0, pytest.approx(0, abs=1e-8)])
