import json

import pytest
import torch
from transformers import TrainingArguments

from recurformer.train.optimiser import SCHEDULES, parameter_groups
from recurformer.train.trainer import train
from tests.model.tiny_models import make_converted
from tests.train.test_resuming import SETTINGS, same_weights


@pytest.mark.parametrize(("step", "value"), [(1, float("inf")), (7, float("nan")), (12, float("nan"))])
def test_a_loss_that_is_not_finite_stops_the_run(make_model, successors, tmp_path, value, step):
    model, calls = make_model(), []
    forward = type(model).forward

    def poisoned(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        calls.append(1)
        if len(calls) == step:
            output.loss = output.loss * value
        return output

    model.forward = poisoned.__get__(model)
    with pytest.raises(ValueError, match=rf"^step {step + step % 2}: the loss is (nan|inf); .*") as raised:
        train(model, successors(), output_dir=tmp_path, **SETTINGS)
    assert "\n" not in str(raised.value)
    kept = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert kept == {1: [], 7: ["checkpoint-4"], 12: ["checkpoint-4", "checkpoint-8"]}[step]
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(2, step, 2)) if step > 2 else not steps
    whole, resumed = make_model(), make_model()
    train(whole, successors(), output_dir=tmp_path / "whole", **SETTINGS)
    train(resumed, successors(), output_dir=tmp_path, **SETTINGS)
    assert same_weights(whole, resumed)


def test_a_weight_that_is_not_finite_is_never_saved(make_model, successors, tmp_path):
    """The loss of the step is finite, its gradient is not: the checkpoint that is due must not be written."""
    model, calls = make_model(), []

    def poison(gradient):
        calls.append(1)
        return gradient * float("nan") if len(calls) == 4 else gradient

    model.model.norm.weight.register_hook(poison)
    with pytest.raises(ValueError, match=r"^step 4: the gradient"):
        train(model, successors(), output_dir=tmp_path, **SETTINGS)
    assert not list(tmp_path.glob("checkpoint-*"))


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_the_run_is_the_textbook_loop(make_model, successors, tmp_path, schedule):
    settings = SETTINGS | {"schedule": schedule, "gradient_clip": 0.5, "weight_decay": 0.1, "warmup_share": 0.25}
    model, reference = make_model(), make_model()
    rows = train(model, successors(), output_dir=tmp_path, **settings)

    optimizer = torch.optim.AdamW(parameter_groups(reference, 1e-2, 1e-2, 0.1), lr=1e-2)
    losses = []
    for step in range(12):
        items = [successors()[index] for index in range(4 * step, 4 * step + 4)]
        batch = {key: torch.stack([item[key] for item in items]) for key in items[0]}
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * SCHEDULES[schedule](step, 12, 0.25)
        optimizer.zero_grad()
        loss = reference(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    for trained, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(trained, expected, rtol=1e-4, atol=1e-5)
    pairs = [(first + second) / 2 for first, second in zip(losses[::2], losses[1::2], strict=True)]
    assert rows.loss.tolist() == pytest.approx(pairs, rel=1e-4)
    assert rows.tokens.tolist() == [step * 4 * 12 for step in rows.step]
    assert rows.learning_rate.tolist() == [1e-2 * SCHEDULES[schedule](step - 1, 12, 0.25) for step in rows.step]


def test_gradient_accumulation_is_the_large_batch(make_model, successors, tmp_path):
    """Labels are unevenly spread over the passes, so a mean of means would differ."""
    once, spread = make_model(), make_model()
    train(once, successors(), output_dir=tmp_path / "once", **SETTINGS)
    rows = train(spread, successors(), output_dir=tmp_path / "spread", gradient_accumulation=4, **SETTINGS)
    for left, right in zip(once.parameters(), spread.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)
    assert rows.step.tolist() == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_schedules_rise_then_fall(name):
    shape = [SCHEDULES[name](step, 100, 0.2) for step in range(100)]
    assert 0 < shape[0] < 0.1
    assert max(shape) == pytest.approx(1)
    assert shape[:20] == sorted(shape[:20])
    assert shape[20:] == sorted(shape[20:], reverse=True)
    assert shape[-1] == 1 if name == "constant" else shape[-1] < 0.01
    assert all(0 <= SCHEDULES[name](step, 1, fraction) <= 1 for step in (0, 1) for fraction in (0.0, 0.5, 1.0))


def test_one_process_computes_on_one_device(make_model, successors, tmp_path, monkeypatch):
    """Where the library sees several GPUs it would wrap the model and give each of them a whole batch."""
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda arguments: 2))
    wrapped, wrap = [], torch.nn.DataParallel.__init__
    monkeypatch.setattr(torch.nn.DataParallel, "__init__", lambda *given: wrapped.append(given) or wrap(*given))
    rows = train(make_model(), successors(), output_dir=tmp_path, **SETTINGS)
    assert rows.tokens.tolist() == [step * 4 * 12 for step in rows.step] and not wrapped


@pytest.mark.parametrize(("rate", "moves"), [(0.0, False), (1e-2, True), (None, True)])
def test_a_rate_of_zero_freezes_the_mixers(successors, tmp_path, rate, moves):
    model = make_converted("qwen2_gqa", "mixed")
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    settings = SETTINGS | {"steps": 2, "weight_decay": 0.1, "mixer_learning_rate": rate}
    train(model, successors(), output_dir=tmp_path, **settings)
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    mixers = {name for name in before if ".mamba." in name}
    assert changed & mixers == (mixers if moves else set()) and changed - mixers


def test_mamba_parameters_have_their_own_rate_and_undecayed_ones():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.A_log = torch.nn.Parameter(torch.zeros(4, 2))
            self.D = torch.nn.Parameter(torch.zeros(4))
            self.in_proj = torch.nn.Linear(4, 8, bias=False)

    layer = torch.nn.ModuleDict({"mamba": Block(), "o_proj": torch.nn.Linear(4, 4)})
    model = torch.nn.ModuleDict({"attention": layer})
    model.attention.o_proj.bias.requires_grad_(False)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {}
    for group in parameter_groups(model, 1.0, 2.0, 0.1):
        found |= {names[id(parameter)]: (group["lr"], group["weight_decay"]) for parameter in group["params"]}
    assert found == {
        "attention.mamba.A_log": (2.0, 0.0),
        "attention.mamba.D": (2.0, 0.0),
        "attention.mamba.in_proj.weight": (2.0, 0.1),
        "attention.o_proj.weight": (1.0, 0.1),
    }


def test_the_model_comes_back_as_it_was(make_model, successors, tmp_path, capsys):
    model = make_model().eval()
    train(model, successors(), output_dir=tmp_path, gradient_checkpointing=True, **SETTINGS)
    assert model.config.use_cache
    assert not model.training
    assert not model.model.gradient_checkpointing
    said = capsys.readouterr()
    assert said.out + said.err == ""


def test_a_batch_that_does_not_divide_is_refused(make_model, successors, tmp_path):
    with pytest.raises(ValueError, match=r"^batch_size 4: not divisible by processes 1 times gradient_accumulation 3$"):
        train(make_model(), successors(), output_dir=tmp_path, gradient_accumulation=3, **SETTINGS)
