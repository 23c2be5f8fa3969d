"""The unrolled form of the scan against the scan itself, a token's weights against matrices, and Figure 1's rows."""

from copy import deepcopy

import pytest
import torch
from torch.nn import functional as F

from recurformer import HeadProfile, convert
from recurformer.data.backbones import make_random
from recurformer.measure.device import PeakMemory
from recurformer.measure.influence import (
    attention_influence,
    block_arguments,
    gate_norms,
    mamba_influence,
    measure_influence,
    replaced_example,
    token_weights,
)

LAYERS, HEADS, TOKENS = 2, 4, 20
REPLACED = [[0, 1], [2, 3]]


@pytest.fixture(scope="module")
def models():
    sizes = {"hidden_size": 32, "layers": LAYERS, "heads": HEADS, "kv_heads": 2, "intermediate_size": 48}
    base = make_random(**sizes, vocab_size=64, initializer_range=0.4)
    torch.manual_seed(0)
    return base, convert(base, REPLACED, d_state=4, dt_rank=3)


@pytest.fixture(scope="module")
def input_ids():
    return torch.randint(0, 64, (3, TOKENS), generator=torch.Generator().manual_seed(1))


def matrices_of(block, projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The slow reference: T as a product of lower-triangular matrices (B, D, L, L), and what the bias gives (B, D, L).

    Args:
        block: a Mamba block in float64.
        projected: what its in_proj gives.
    """
    rows = projected.chunk(2, -1)[0].transpose(1, 2)
    taps, length = block.conv1d.weight.squeeze(1), rows.shape[-1]
    mixing = torch.zeros(len(taps), length, length, dtype=torch.float64)
    for step in range(length):
        for lag in range(min(taps.shape[1], step + 1)):
            mixing[:, step, step - lag] = taps[:, taps.shape[1] - 1 - lag]
    before = (mixing @ rows.unsqueeze(-1)).squeeze(-1) + block.conv1d.bias[:, None]
    values = F.silu(before)
    sizes = [block.dt_rank, block.d_state, block.d_state]
    low_rank, B, C = block.x_proj(values.transpose(1, 2)).split(sizes, -1)
    delta, A = F.softplus(block.dt_proj(low_rank)), -block.A_log.exp()  # (B, L, D), (D, N)
    scan = torch.zeros(len(rows), len(taps), length, length, dtype=torch.float64)
    for step in range(length):
        state = delta[:, step, :, None] * B[:, step, None]
        for later in range(step, length):
            state = state if later == step else state * torch.exp(delta[:, later, :, None] * A)
            scan[:, :, later, step] = (state * C[:, later, None]).sum(-1)
    scan += torch.diag_embed(block.D[:, None].expand(-1, length))
    scan = scan @ torch.diag_embed(before.sigmoid())
    return scan @ mixing, scan.sum(-1) * block.conv1d.bias[:, None]


@pytest.fixture
def strong(models):
    """The converted model in float64, in which every part of every block weighs something."""
    model = deepcopy(models[1]).double()
    generator = torch.Generator().manual_seed(3)
    for layer in model.model.layers:
        for parameter in layer.self_attn.mamba.parameters():
            parameter.data.normal_(0, 0.3, generator=generator)
    return model


@torch.no_grad()
def test_token_weights_are_those_of_explicit_matrices(strong, input_ids):
    """With the block's own gate and output projection the matrices give the block's own output: nothing is missing."""
    block, seen = strong.model.layers[1].self_attn.mamba, {}
    handles = [
        block.register_forward_hook(lambda module, args, output: seen.update(output=output)),
        block.in_proj.register_forward_hook(lambda module, args, output: seen.update(projected=output)),
    ]
    arguments = block_arguments(strong, input_ids, 1)
    for handle in handles:
        handle.remove()
    rows, gate = seen["projected"].chunk(2, -1)
    matrices, bias = matrices_of(block, seen["projected"])
    y = (matrices @ rows.transpose(1, 2).unsqueeze(-1)).squeeze(-1) + bias
    torch.testing.assert_close(block.out_proj(y.transpose(1, 2) * F.silu(gate)), seen["output"])
    assert seen["output"].std() > 0.01
    for query in (0, 2, 3, 11, TOKENS - 1):
        expected = matrices[:, :, query, : query + 1]
        seen_by = {name: arguments[name][..., : query + 1] for name in ("delta", "B", "C", "sigmoid")}
        torch.testing.assert_close(token_weights(**arguments | seen_by), expected, atol=1e-10, rtol=1e-8)
        fractions = expected.abs().mean((0, 1))
        found = mamba_influence(strong, input_ids[:, : query + 1], 1)
        torch.testing.assert_close(found, fractions / fractions.sum())
    assert not block.x_proj._forward_hooks and not block.conv1d._forward_hooks  # nothing is left behind


def test_rows_of_influence(models, input_ids):
    base, converted = models
    rr = torch.tensor([[[0.1, 0.6, 0.9, 0.9], [0.9, 0.1, 0.2, 0.8]]], dtype=torch.float64)
    profile = HeadProfile(rr, 5, 0.5, True, 2, 32)
    assert replaced_example(profile, REPLACED) == (1, 3)  # 0.9s are not replaced
    frame = measure_influence(base, converted, input_ids[:, :16], profile, "tiny")
    assert list(frame.columns) == ["model", "mixer", "layer", "head", "query", "key", "weight", "norm", "samples"]
    assert set(frame.layer) == {1} and set(frame["query"]) == {15}
    for mixer, head in (("attention", 3), ("mamba", -1)):
        rows = frame[frame.mixer == mixer]
        assert rows.key.tolist() == list(range(16)) and set(rows["head"]) == {head}
        assert rows.weight.sum() == pytest.approx(1) and (rows.weight >= 0).all()
    base.set_attn_implementation("eager")
    with torch.no_grad():
        expected = base(input_ids, output_attentions=True).attentions[1][:, 3, 15, :16].mean(0)
    base.set_attn_implementation("sdpa")
    assert frame[frame.mixer == "attention"].weight.to_numpy() == pytest.approx(expected.numpy(), abs=1e-6)


@torch.no_grad()
def test_norms_behind_the_input_gate_are_those_of_the_values_before_the_convolution_times_step_and_b(strong, input_ids):
    found, layers = gate_norms(strong, input_ids), []
    for layer, heads in enumerate(REPLACED):
        arguments, seen = block_arguments(strong, input_ids, layer), {}
        hooks = {"in_proj": "values", "conv1d": "rows"}
        block = strong.model.layers[layer].self_attn.mamba
        handles = [
            getattr(block, module).register_forward_pre_hook(
                lambda m, args, name=name, seen=seen: seen.update({name: args[0]})
            )
            for module, name in hooks.items()
        ]
        strong(input_ids)
        for handle in handles:
            handle.remove()
        taken = torch.einsum("bdl,bnl,bld->blnd", arguments["delta"], arguments["B"], seen["rows"])
        assert seen["values"].shape[-1] <= len(heads) * strong.config.head_dim
        norms = [tensor.flatten(2).square().sum(-1).sqrt().mean(0) for tensor in (seen["values"], taken)]
        layers.append([norm / norm.mean() for norm in norms])
    for name, expected in zip(("attention", "mamba"), zip(*layers, strict=True), strict=True):
        torch.testing.assert_close(found[name], torch.stack(expected).mean(0))
        assert found[name].std() > 0.01


def test_decays_of_all_samples_never_exist_at_once(models):
    samples = torch.zeros(64, TOKENS, dtype=torch.long)
    with PeakMemory() as memory:
        found = mamba_influence(models[1], samples, layer=0)
    arguments = block_arguments(models[1], samples, layer=0)
    decays = arguments["delta"].nbytes * arguments["A"].shape[1]
    assert memory.peak < 2 * decays, "the decays of all samples, and one more such array"
    at_once = token_weights(**arguments).abs().mean((0, 1))
    assert torch.equal(found, at_once / at_once.sum())


def test_bad_requests_are_refused(models, input_ids):
    base, converted = models
    with pytest.raises(ValueError, match="layer 0 has no Mamba block"):
        mamba_influence(base, input_ids, 0)
    with pytest.raises(ValueError, match="layer 0 head 1 does not attend"):
        attention_influence(converted, input_ids, 0, 1)
    with pytest.raises(ValueError, match="no head of the converted model is replaced"):
        measure_influence(base, base, input_ids, HeadProfile(torch.rand(1, 2, 4), 5, 0.5, True, 2, 32), "tiny")
