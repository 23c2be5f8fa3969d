"""What each mixer computes, against its definition written out step by step in float64."""

import pytest
import torch
from tiny_models import difference
from torch.nn import functional as F
from transformers import DynamicCache, LlamaConfig

from recurformer.model.config import RecurFormerLlamaConfig
from recurformer.model.layout import head_layout
from recurformer.model.mixer import CHUNK, ReplacedHeads, decayed_recurrence
from recurformer.model.mixers import MIXERS

DIM, HEADS, LENGTH, WINDOW, SINKS = 8, 5, 140, 12, 3  # several chunks and blocks
OF_KV_HEAD = [0, 0, 0, 1, 1]  # of six query heads over two KV heads the last attends


def make_mixer(name, dtype=torch.float64):
    config = RecurFormerLlamaConfig(hidden_size=6 * DIM, num_attention_heads=6, window_tokens=WINDOW, sink_tokens=SINKS)
    torch.manual_seed(0)
    mixer = MIXERS[name](config, head_layout(range(HEADS), 6, 2), DIM, 0)
    for parameter in mixer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return mixer.to(dtype)


def make_inputs(length=LENGTH, dtype=torch.float64, seed=1):
    """Values, and what the replaced heads attend with, rotated by real angles."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"values": (2, length, 2 * DIM), "hidden": (2, length, 6 * DIM)}
    shapes |= {"queries": (2, length, HEADS, DIM), "keys": (2, length, 2, DIM)}
    x = {name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}
    angles = torch.arange(length).outer(torch.arange(1, DIM // 2 + 1).reciprocal()).repeat(1, 2).to(dtype)
    cos_sin = (angles.cos().unsqueeze(0), angles.sin().unsqueeze(0))
    return x["values"], ReplacedHeads(x["hidden"], x["queries"], x["keys"], cos_sin)


def run(mixer, values, heads, mask=None, cuts=()):
    """The mixer over one input, or over pieces that a cache connects."""
    config, parts = LlamaConfig(num_hidden_layers=1), []
    config.layer_types = ["linear_attention"]
    cache = DynamicCache(config=config) if cuts else None
    for start, stop in zip((0, *cuts), (*cuts, values.shape[1]), strict=True):
        here = slice(start, stop)
        cos_sin = tuple(x[:, here] for x in heads.position_embeddings)
        piece = ReplacedHeads(*(x[:, here] for x in heads[:3]), cos_sin)
        reads = {"heads": piece} if mixer.reads_keys else {}
        parts.append(mixer(values[:, here], cache, None if mask is None else mask[:, here], **reads))
    return torch.cat(parts, 1)


def by_head(values):
    return values.unflatten(2, (2, DIM)).transpose(1, 2)[:, OF_KV_HEAD]  # (B, H, L, DIM)


def joined(heads):
    return heads.transpose(1, 2).flatten(2)


def window_by_mask(mixer, values, heads):
    queries, keys = heads.rotated()
    places = torch.arange(values.shape[1])
    back = places.unsqueeze(-1) - places
    visible = (back >= 0) & ((back < WINDOW) | (places < SINKS))
    return joined(F.scaled_dot_product_attention(queries, keys[:, OF_KV_HEAD], by_head(values), visible))


def linear_by_steps(mixer, values, heads):
    queries, keys = (F.elu(x) + 1 for x in heads.rotated())
    keys, state, normaliser, outputs = keys[:, OF_KV_HEAD], 0, 0, []
    for q, k, v in zip(*(x.unbind(2) for x in (queries, keys, by_head(values))), strict=True):
        state = state + k.unsqueeze(-1) * v.unsqueeze(-2)
        normaliser = normaliser + k
        outputs.append((q.unsqueeze(-2) @ state).squeeze(-2) / (q * normaliser).sum(-1, keepdim=True))
    return joined(torch.stack(outputs, 2))


def gated_by_steps(mixer, values, heads):
    queries, keys = (F.normalize(x, dim=-1).transpose(1, 2) for x in (heads.queries, heads.keys))
    deltas = F.softplus(mixer.dt_proj(heads.hidden_states)).transpose(1, 2)
    keys, state, outputs = keys[:, OF_KV_HEAD], 0, []
    for q, k, v, delta in zip(*(x.unbind(2) for x in (queries, keys, by_head(values), deltas)), strict=True):
        decay = torch.exp(-delta * mixer.A_log.exp())[..., None, None]
        state = decay * state + delta[..., None, None] * k.unsqueeze(-1) * v.unsqueeze(-2)
        outputs.append((q.unsqueeze(-2) @ state).squeeze(-2) + mixer.D.unsqueeze(-1) * v)
    return joined(torch.stack(outputs, 2))


def retention_by_steps(mixer, values, heads):
    queries, keys = (F.elu(x) + 1 for x in heads.rotated())
    keys, inputs, features = keys[:, OF_KV_HEAD], by_head(values), []
    gates = torch.sigmoid(mixer.gate(heads.hidden_states)).unflatten(2, (2, len(mixer.memories)))[:, :, OF_KV_HEAD]
    for rate in range(gates.shape[-1]):
        state, normaliser, means = 0, 0, []
        for step, (q, k, v) in enumerate(zip(*(x.unbind(2) for x in (queries, keys, inputs)), strict=True)):
            gate = gates[:, step, :, rate].unsqueeze(-1)
            state = gate.unsqueeze(-1) * state + k.unsqueeze(-1) * v.unsqueeze(-2)
            normaliser = gate * normaliser + k
            means.append((q.unsqueeze(-2) @ state).squeeze(-2) / (q * normaliser).sum(-1, keepdim=True))
        features.append(torch.stack(means, 1))  # (B, L, H, DIM)
    of_heads = torch.stack(features, 3).flatten(2)  # every head at all rates
    return torch.cat([of_heads, values], -1)


def window_and_retention(mixer, values, heads):
    near = window_by_mask(mixer.window, values, heads)
    return near + mixer.readout(torch.cat([near, retention_by_steps(mixer, values, heads)], -1))


def mean_by_slices(mixer, values, heads):
    last = [values[:, max(0, t + 1 - WINDOW) : t + 1].mean(1) for t in range(values.shape[1])]
    return joined(by_head(torch.stack(last, 1)))


DEFINITIONS = {
    "window": window_by_mask,
    "linear": linear_by_steps,
    "gated": gated_by_steps,
    "retention": lambda mixer, *inputs: mixer.readout(retention_by_steps(mixer, *inputs)),
    "window_state": window_and_retention,
    "mean": mean_by_slices,
    "zero": lambda mixer, values, heads: values.new_zeros(*values.shape[:2], HEADS * DIM),
}
CUTS = [(), (2, 3, 4, 90), (64, 128), tuple(range(1, LENGTH))]
every_mixer = pytest.mark.parametrize("name", DEFINITIONS)


@every_mixer
@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: f"{len(cuts) + 1} pieces")
@torch.no_grad()
def test_outputs_are_those_of_the_definition(name, cuts):
    mixer, (values, heads) = make_mixer(name), make_inputs()
    result, expected = run(mixer, values, heads, cuts=cuts), DEFINITIONS[name](mixer, values, heads)
    assert result.shape == expected.shape
    assert torch.allclose(result, expected, rtol=0, atol=1e-11)


@every_mixer
@torch.no_grad()
def test_single_precision_is_near(name):
    expected = DEFINITIONS[name](make_mixer(name), *make_inputs())
    result = run(make_mixer(name, torch.float32), *make_inputs(dtype=torch.float32))
    assert torch.allclose(result.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["window", "linear", "gated", "retention", "window_state", "mean"])
@pytest.mark.parametrize("cuts", [(), (3, 20, 21)], ids=["at once", "in pieces"])
def test_gradients_are_those_of_the_definition(name, cuts):
    mixer, gradients = make_mixer(name), []
    for compute in (lambda *inputs: run(mixer, *inputs, cuts=cuts), lambda *inputs: DEFINITIONS[name](mixer, *inputs)):
        values, heads = make_inputs(length=150)
        leaves = [values, *heads[: 3 if mixer.reads_keys else 0], *mixer.parameters()]
        for leaf in leaves:
            leaf.requires_grad_(True)
        loss = compute(values, heads).pow(3).sum()
        gradients.append(torch.autograd.grad(loss, leaves, allow_unused=True))
    assert any(gradient is not None for gradient in gradients[0])
    for ours, expected in zip(*gradients, strict=True):
        assert (ours is None) == (expected is None)
        assert ours is None or difference(ours, expected) < 1e-9


def test_a_recurrence_does_not_overflow():
    """Fast decays over a long chunk: quotients of products of decays would be infinite."""
    length = 2 * CHUNK
    query, key, value = torch.randn(3, 1, 1, length, 4)
    log_decay = torch.full((1, 1, length), -50.0, requires_grad=True)
    outputs, state = decayed_recurrence(query, key, value, log_decay)
    assert torch.allclose(outputs, (query * key).sum(-1, keepdim=True) * value, atol=1e-5)
    outputs.sum().backward()
    assert state.isfinite().all() and log_decay.grad.isfinite().all()
