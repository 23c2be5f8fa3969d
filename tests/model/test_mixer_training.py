"""Mixers beside attention in training: gradients, precision, compilation, learning rates, first weights."""

import torch
from test_generate import LENGTH
from test_mixers import every_mixer, make
from tiny_models import HEADS, difference, make_backbone, tokens
from transformers import DynamicCache

from recurformer.model.convert import convert
from recurformer.train.optimiser import parameter_groups


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
