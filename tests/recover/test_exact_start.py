"""The start at which a Mamba block is a convolution: exactly, and near to the heads' mean attention by lag."""

import pytest
import torch
from torch.nn import functional as F

from recurformer import convert
from recurformer.recover.exact_start import Kernels, exact_start, fit_kernels, lag_profiles, write_kernels
from recurformer.recover.pair import replaced_layers
from tests.model.tiny_models import HEADS, MAMBA, PAIRS, make_backbone, tokens

MODELS = [("llama_mha", "mixed"), ("qwen2_gqa", "ragged"), ("llama_gqa_tied", "beta_one")]
every_model = pytest.mark.parametrize(("backbone", "heads"), MODELS)


def pair(backbone="llama_gqa_tied", heads=HEADS["mixed"], mixer="mamba_open", **changes):
    original = make_backbone(backbone).double()
    torch.manual_seed(1)
    return original, convert(original, heads, mixer=mixer, **MAMBA | changes)


def convolved(values, kernels):
    """Values (B, L, heads, dim) after causal kernels (heads, L)."""
    length = values.shape[1]
    lag = torch.arange(length).unsqueeze(1) - torch.arange(length)
    matrix = kernels[:, lag.clamp(min=0)] * (lag >= 0)  # (heads, L, L)
    return torch.einsum("hts,bshd->bthd", matrix, values)


@every_model
def test_the_block_is_the_convolution(backbone, heads):
    original, converted = pair(backbone, HEADS[heads])
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    for place in replaced_layers(original, converted):
        layout, block = place.converted.layout, place.converted.mixer
        count, states, taps = len(layout.replaced), MAMBA["d_state"], MAMBA["d_conv"]
        kernels = Kernels(
            random(count, taps), random(count), random(count).exp() / 10, random(count, states).exp(), random(states)
        )
        write_kernels(block, kernels)
        values = random(2, 30, block.in_proj.in_features)
        of_heads = values.unflatten(2, (-1, 8)).repeat_interleave(torch.tensor(block.copies), 2)
        expected = convolved(of_heads, kernels.by_lag(30)).flatten(2)
        torch.testing.assert_close(block(values), expected, rtol=0, atol=1e-9)


def test_kernels_reach_the_profiles_of_one_layer():
    lag = torch.arange(256.0)
    profiles = torch.stack([1 / (1 + lag), torch.exp(-lag / 16) / 16, (lag == 1).float(), 0.3 * (lag < 3)])
    kernels = fit_kernels(profiles, states=16, taps=4)
    errors = (kernels.by_lag(256) - profiles).square().sum(1) / profiles.square().sum(1)
    assert errors.max() < 1e-3
    assert kernels.rates.min() > 0 and kernels.step.log().mean().exp() == pytest.approx(0.03)


@pytest.mark.parametrize(("backbone", "heads"), MODELS + PAIRS)
def test_profiles_are_the_mean_attention_by_lag_without_the_first_token(backbone, heads):
    original, converted = pair(backbone, HEADS[heads])
    windows = tokens(5, 20)
    profiles = lag_profiles(original, converted, windows, lags=9, batch_size=2)
    original.set_attn_implementation("eager")
    attentions = original(windows, output_attentions=True).attentions
    for place in replaced_layers(original, converted):
        weights = attentions[place.index][:, list(place.converted.layout.replaced)]
        for lag in range(9):
            expected = torch.stack([weights[..., t, t - lag] for t in range(lag + 1, 20)]).mean((0, 1))
            torch.testing.assert_close(profiles[place.index][:, lag], expected, rtol=1e-5, atol=1e-6)


def test_the_converted_model_convolves_with_the_fitted_kernels():
    original, converted = pair()
    seen = []
    rows = exact_start(original, converted, tokens(4, 40), lags=20, progress=lambda *done: seen.append(done))
    assert rows[["layer", "head"]].to_numpy().tolist() == [[i, head] for i in (0, 2) for head in HEADS["mixed"][i]]
    assert rows.error.between(0, 0.5).all() and rows.mass.between(0.5, 1.1).all() and seen == [(1, 2), (2, 2)]
    profiles = lag_profiles(original, converted, tokens(4, 40), lags=20)
    for place in replaced_layers(original, converted):
        mixer, copies = place.converted.mixer, torch.tensor(place.converted.mixer.copies)
        impulse = F.pad(torch.ones(1, 1, mixer.in_proj.in_features, dtype=torch.float64), (0, 0, 0, 19))
        heads = mixer(impulse).unflatten(2, (int(copies.sum()), 8))[0, :, :, 0].mT
        found = (heads - profiles[place.index]).square().sum(1) / profiles[place.index].square().sum(1)
        assert found.tolist() == pytest.approx(rows[rows.layer == place.index].error.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: (*pair(mixer="mamba"), tokens(2, 30)), "mixer 'mamba_open' with expand 2 is needed, this is 'mamba'"),
        (lambda: (*pair(expand=3), tokens(2, 30)), "this is 'mamba_open' with 3"),
        (lambda: (*pair(), tokens(2, 20)), r"more than lags=20 tokens, got \(2, 20\)"),
    ],
)
def test_bad_input_is_refused_in_one_line(change, message):
    with pytest.raises(ValueError, match=message) as error:
        exact_start(*change(), lags=20)
    assert "\n" not in str(error.value)
