"""Transfer and distillation: what is minimised, what may change, and that a killed run ends with the same bytes."""

from itertools import cycle

import pytest
import torch
from torch.nn import functional as F

from recurformer import convert, distil, transfer
from recurformer.data.datasets import WindowDataset
from recurformer.heads.attention import reading
from recurformer.measure.language import divergence
from recurformer.recover import learn
from recurformer.recover import recipe as recipes
from recurformer.recover.learn import TRAINED, Distillation, Transfer, only_training
from recurformer.recover.pair import relative_error, replaced_layers
from recurformer.recover.recipe import RECIPES
from recurformer.recover.run import learn as learn_by
from recurformer.study import Training
from tests.model.tiny_models import HEADS, MAMBA, MATRIX, make_backbone, tokens

SETTINGS = {"steps": 12, "batch_size": 4, "learning_rate": 1e-2, "log_every": 2, "save_every": 4}
STEPS = {"transfer": transfer, "distil": distil}
MIXERS = ("mamba", "gated", "retention", "window", "window_state")


@pytest.fixture
def original():
    return make_backbone("llama_gqa_tied")


def converted_from(original, heads=HEADS["mixed"], mixer="mamba"):
    torch.manual_seed(1)
    return convert(original, heads, mixer=mixer, window_tokens=4, sink_tokens=1, **MAMBA)


def windows():
    return WindowDataset(tokens(32, 16))


class Killed(WindowDataset):
    """Windows of which one kills the run."""

    def __getitem__(self, index):
        if index == 27:
            raise KeyboardInterrupt
        return super().__getitem__(index)


@pytest.mark.parametrize(("model", "mixer"), zip(MATRIX, cycle(MIXERS)))
def test_transfer_measures_each_mixer_on_the_originals_inputs(model, mixer):
    backbone, heads = model
    original = make_backbone(backbone).double()
    converted = converted_from(original, HEADS[heads], mixer)
    input_ids = tokens(2, 14)
    errors = Transfer(original, converted).errors(input_ids)
    layers = replaced_layers(original, converted)
    assert errors.shape == (len(layers),)
    for place, error in zip(layers, errors, strict=True):
        alone = [heads if layer == place.index else [] for layer, heads in enumerate(HEADS[heads])]
        single = converted_from(original, alone, mixer)  # no error before the layer: it reads the original's inputs
        ours, theirs = single.model.layers[place.index].self_attn, place.original
        ours.mixer.load_state_dict(place.converted.mixer.state_dict())
        with torch.no_grad(), reading([ours.o_proj, theirs.o_proj]) as calls:
            single(input_ids)
            original(input_ids)
        outputs, heads_outputs = (arguments[0] for arguments, _ in calls)
        retained = outputs.shape[-1] - len(place.features)
        expected = relative_error(outputs[..., retained:], heads_outputs[..., place.features], place.output_weight)
        torch.testing.assert_close(error.detach(), expected)


def test_divergence_is_the_librarys(original):
    ours, theirs = (torch.randn(2, 5, 9, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=theirs), torch.distributions.Categorical(logits=ours)
    )
    torch.testing.assert_close(divergence(ours, theirs), expected)


@pytest.mark.parametrize(
    ("backbone", "settings"),
    [("llama_gqa_tied", {}), ("granite", {}), ("gemma3_text", {"final_logit_softcapping": 5.0})],
)
@pytest.mark.parametrize(("fraction", "short"), [(0.0, 15), (0.0, 19), (0.25, 15), (0.25, 19), (1.0, 15)])
def test_distillation_mixes_the_losses_and_ignores_padding(backbone, settings, fraction, short, monkeypatch):
    """Of windows that count as long the logits are made in parts."""
    monkeypatch.setattr(learn, "TOKENS", short)
    monkeypatch.setattr(learn, "PLACES", 5)
    original = make_backbone(backbone, **settings).double()
    converted, batch = converted_from(original), windows().collate([windows()[0], windows()[1]])
    objective = Distillation(original, converted, fraction)
    padded = {key: F.pad(value, (0, 3), value=-100 if key == "labels" else 0) for key, value in batch.items()}
    padded["attention_mask"] = (torch.arange(19) < 16).long().expand(2, -1)
    outputs = converted(**batch)
    apart = divergence(outputs.logits, original(batch["input_ids"]).logits.detach()).mean()
    expected = (1 - fraction) * apart + fraction * outputs.loss
    of_expected = torch.autograd.grad(expected, list(converted.parameters()))
    for given in (batch, padded):
        loss = objective(converted, given)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0, check_dtype=False)
        gradients = torch.autograd.grad(loss, list(converted.parameters()))
        torch.testing.assert_close(gradients, of_expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("step", STEPS)
def test_the_loss_falls_and_nothing_else_changes(original, tmp_path, step):
    converted = converted_from(original)
    rows = STEPS[step](original, converted, windows(), output_dir=tmp_path, **{**SETTINGS, "steps": 40})
    assert rows.loss.iloc[-1] < 0.8 * rows.loss.iloc[0]
    fresh, stock = converted_from(original), make_backbone("llama_gqa_tied")
    for name, parameter in converted.named_parameters():
        assert torch.equal(parameter, fresh.get_parameter(name)) != (".mamba." in name), name
        assert parameter.requires_grad
    assert all(map(torch.equal, original.parameters(), stock.parameters()))


@pytest.mark.parametrize("options", [("transfer", {}), ("distil", {"trained": "lora"}), ("distil", {"trained": "all"})])
def test_a_killed_run_ends_with_the_same_bytes(original, tmp_path, options):
    step, settings = STEPS[options[0]], {**SETTINGS, **options[1]}
    whole = converted_from(original)
    step(original, whole, windows(), output_dir=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        step(original, converted_from(original), Killed(tokens(32, 16)), output_dir=tmp_path / "cut", **settings)
    assert (tmp_path / "cut" / "checkpoint-4").is_dir()
    resumed = converted_from(original)
    step(original, resumed, windows(), output_dir=tmp_path / "cut", **settings)
    state = resumed.state_dict()
    assert state.keys() == converted_from(original).state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in whole.state_dict().items())


def test_another_original_starts_again(original, tmp_path):
    seen = []
    for seed in (0, 0, 3):
        teacher = make_backbone("llama_gqa_tied", seed)
        rows = transfer(teacher, converted_from(original), windows(), output_dir=tmp_path, **SETTINGS)
        seen.append(rows.loss.tolist())
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize("trained", TRAINED)
def test_what_is_trained_is_a_setting(original, tmp_path, trained):
    converted = converted_from(original)
    distil(original, converted, windows(), output_dir=tmp_path, trained=trained, **{**SETTINGS, "steps": 2})
    fresh = converted_from(original)
    changed = {n for n, parameter in converted.named_parameters() if not torch.equal(parameter, fresh.get_parameter(n))}
    assert any(".mamba." in name for name in changed)
    assert any(".q_proj." in name for name in changed) == (trained != "mixers")
    assert any(".mlp." in name for name in changed) == (trained in {"lora", "all"})
    assert any("embed" in name for name in changed) == (trained == "all")


@pytest.mark.parametrize("mixer", ["mamba", "window"])
def test_long_windows_are_read_one_at_a_time_by_the_same_steps(original, tmp_path, monkeypatch, mixer):
    """As `adapt` and the recovery study train. The error of transfer is a ratio over its batch, and stays one."""
    sizes: list[int] = []
    original.model.register_forward_pre_hook(
        lambda _, args, named: sizes.append(len(args[0] if args else named["input_ids"])), with_kwargs=True
    )
    recipe, training = RECIPES["mamba"].model_copy(update={"trained": "attention"}), Training(**SETTINGS)
    losses = []
    for longest in (16, 15):  # the windows have 16 tokens
        monkeypatch.setattr(recipes, "TOKENS", longest)
        monkeypatch.setattr(learn, "TOKENS", longest)
        converted, folder = converted_from(original, mixer=mixer), tmp_path / str(longest)
        rows = learn_by("distil", original, converted, windows(), recipe, training, output_dir=folder)
        losses.append(torch.tensor(rows.loss))
    batch, steps = SETTINGS["batch_size"], SETTINGS["steps"]
    assert sizes == [batch] * steps + [1] * batch * steps
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)
    if mixer == "mamba":
        learn_by("transfer", original, converted, windows(), recipe, training, output_dir=tmp_path / "transfer")
        assert sizes[-steps:] == [batch] * steps


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"trained": "heads"}, "trained: 'heads' is unknown; there are mixers, attention"),
     ({"language_model_share": 2.0}, "language_model_share: 2.0 must lie in")],
)  # fmt: skip
def test_bad_settings_are_refused_in_one_line(original, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        distil(original, converted_from(original), windows(), output_dir=tmp_path, **SETTINGS, **settings)


def test_mixers_without_parameters_are_refused(original):
    with pytest.raises(ValueError, match="mixer 'window' has no parameters"):
        only_training(converted_from(original, mixer="window"), "mixers").__enter__()
