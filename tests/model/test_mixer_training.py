"""Mixers beside attention in training: gradients, precision, compilation, learning rates, first weights."""

import pytest
import torch
from test_generate import (
    LENGTH,
)
from test_mixers import WINDOW, every_mixer, make
from tiny_models import HEADS, MAMBA, difference, make_backbone, tokens
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, DynamicCache

from recurformer.model.convert import convert
from recurformer.model.mixers import MIXERS
from recurformer.train.optimiser import parameter_groups
from recurformer.train.trainer import train


@pytest.mark.parametrize("mixer", [name for name in MIXERS if name != "zero"])
@pytest.mark.parametrize("heads", ["beta_one", "ragged"])
def test_every_parameter_gets_a_gradient(mixer, heads):
    model, ids = make(mixer, heads=heads).train(), tokens(2, 40)
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name


@every_mixer
def test_gradients_pass_through_a_cache(mixer):
    model, ids = make(mixer).train(), tokens(1, LENGTH)
    gradients = []
    for cuts in ((LENGTH,), (6, 1, LENGTH - 7)):
        x = model.model.embed_tokens(ids).detach().requires_grad_()
        cache = DynamicCache(config=model.config)
        for piece in x.split(cuts, 1):
            last = model(inputs_embeds=piece, past_key_values=cache, use_cache=True).logits[:, -1]
        gradients.append(torch.autograd.grad(last.square().sum(), x)[0])
    assert difference(*gradients) < 1e-4


@every_mixer
def test_bfloat16_stays_near_float32(mixer):
    model, ids = make(mixer, heads="ragged"), tokens(2, 30)
    expected = model(ids).logits
    model = model.to(torch.bfloat16)
    result = model(ids, use_cache=True)
    assert result.logits.dtype == torch.bfloat16 and difference(result.logits, expected) < 0.15
    for layer in result.past_key_values.layers:
        state = getattr(layer, "recurrent_states", {0: None})[0]
        assert state is None or state.dtype == (torch.long if mixer == "window" else torch.float32)


@pytest.mark.parametrize("mixer", ["mean", "gated", "retention", pytest.param("window", marks=pytest.mark.slow)])
def test_forward_and_backward_compile_in_one_graph(mixer):
    torch.compiler.reset()
    base = make_backbone("qwen2_gqa", num_hidden_layers=1)
    model, ids = convert(base, [[1, 3, 4, 5]], mixer, **MAMBA | WINDOW).train(), tokens(2, 12)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    result = compiled(ids, labels=ids, use_cache=False)
    assert difference(result.logits, model(ids, use_cache=False).logits) < 1e-5
    result.loss.backward()


class Repetitions(torch.utils.data.Dataset):
    """Rows of one repeated token."""

    def __getitem__(self, index):
        ids = torch.full((12,), 2 + index % 8)
        return {"input_ids": ids, "labels": ids}


@every_mixer
def test_the_trainer_trains_it_and_its_checkpoint_loads(mixer, tmp_path):
    model = make(mixer, heads="ragged")
    before = F.cross_entropy(model(tokens(1, 12)).logits[0], tokens(1, 12)[0])
    settings = {"steps": 2, "batch_size": 2, "learning_rate": 1e-3, "log_every": 1, "save_every": 1}
    rows = train(model, Repetitions(), output_dir=tmp_path, **settings)
    assert rows.loss.notna().all() and rows.step.tolist() == [1, 2]
    assert F.cross_entropy(model(tokens(1, 12)).logits[0], tokens(1, 12)[0]) != before
    model.save_pretrained(tmp_path / "trained")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    assert torch.equal(loaded(tokens(2, 9)).logits, model.eval()(tokens(2, 9)).logits)


def test_new_parameters_learn_at_the_rate_of_mixers():
    model = make("gated")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rates = {names[id(p)]: group["lr"] for group in parameter_groups(model, 1.0, 2.0, 0.1) for p in group["params"]}
    new = {name for name, rate in rates.items() if rate == 2.0}
    prefixes = [f"model.layers.{layer}.self_attn.gated." for layer in (0, 2)]
    assert new == {prefix + name for prefix in prefixes for name in ("A_log", "D", "dt_proj.weight", "dt_proj.bias")}
    assert {rate for name, rate in rates.items() if name not in new} == {1.0}


def test_conversion_starts_each_mixer_by_its_own_rules():
    """The library skips modules without parameters of their own, and leaves their linear layers at its own start."""
    original, ids = make_backbone("qwen2_gqa"), tokens(2, 20)
    window, both, retention = (
        convert(original, HEADS["mixed"], mixer=name, window_tokens=5, sink_tokens=2)
        for name in ("window", "window_state", "retention")
    )
    with torch.no_grad():
        torch.testing.assert_close(both(ids).logits, window(ids).logits)
    gate = retention.model.layers[0].self_attn.mixer.gate
    assert not gate.weight.any() and (gate.bias > 0).all()
