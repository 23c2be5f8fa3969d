"""Recency ratios of one layer in blocks, against the whole attention matrix."""

import pytest
import torch

from recurformer.heads import attention, profile
from recurformer.model import prefill
from tests.heads.test_profile import direct_ratio


@torch.no_grad()
def layer_inputs(length: int = 150, dtype: torch.dtype = torch.float32, sink: float = 0.0, mask=None):
    """One layer's queries, keys and values; `sink`: how strongly all queries look at the first token."""
    generator = torch.Generator().manual_seed(4)
    query, key, value = (
        torch.randn(2, length, heads, 16, generator=generator, dtype=torch.float64).transpose(1, 2)
        for heads in (6, 3, 3)
    )
    query[..., 0], key[..., 0], key[:, :, 0, 0] = 1.0, 0.0, 4 * sink
    tokens = torch.ones(2, length, dtype=torch.bool)
    tokens[1, 100:] = False
    states = (query.to(dtype), key.to(dtype), value.to(dtype))
    return attention.LayerInputs(0, torch.arange(6), torch.arange(2), tokens, *states, mask, 0.25)


def direct_recency(inputs: attention.LayerInputs, window: int, exclude_first: bool):
    """Output and ratios from the whole matrix in float64."""
    query, key, value = inputs.query.double(), inputs.key.double(), inputs.value.double()
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * inputs.scaling
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    visible = visible if inputs.mask is None else visible & inputs.mask
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    output = (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2)
    return output, direct_ratio(weights * inputs.tokens[:, None, :, None], window, exclude_first)


def sliding_mask(length: int = 150) -> torch.Tensor:
    positions = torch.arange(length)
    return (positions[:, None] - positions[None, :] < 70)[None, None]


@pytest.mark.parametrize(
    ("way", "exclude_first", "sink"),
    [
        ("kernel", True, 16.0),
        ("kernel", False, 16.0),
        ("kernel", True, 0.0),
        ("without a kernel", True, 16.0),
        ("without a kernel", False, 0.0),
        ("sliding window", True, 8.0),
        ("sliding window", False, 8.0),
    ],
)
def test_the_band_gives_the_ratios_of_the_whole_matrix(way, exclude_first, sink, monkeypatch):
    """Also in heads that leave the other tokens a fifty-thousandth of their attention."""
    inputs = layer_inputs(sink=sink, mask=sliding_mask() if way == "sliding window" else None)
    if way == "without a kernel":
        monkeypatch.setattr(profile, "refuses", lambda *given: "no kernel")
    for window in (0, 20, 63, 64, 149):
        output, sums = profile.attend_and_sum(inputs, window, exclude_first)
        expected_output, expected = direct_recency(inputs, window, exclude_first)
        torch.testing.assert_close(output.double(), expected_output, atol=1e-5, rtol=0)
        torch.testing.assert_close(sums.recent.sum(-1) / sums.total, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions(dtype):
    inputs = layer_inputs(dtype=dtype, sink=2.0)
    output, sums = profile.attend_and_sum(inputs, 20, True)
    expected_output, expected = direct_recency(inputs, 20, True)
    assert output.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4  # the scores are wide: only the model's own inputs are coarse
    torch.testing.assert_close(sums.recent.sum(-1) / sums.total, expected, atol=tolerance, rtol=0)
    torch.testing.assert_close(output.double(), expected_output, atol=max(tolerance, 0.03), rtol=0)


def test_scores_are_computed_for_a_few_heads_at_a_time(monkeypatch):
    inputs = layer_inputs()
    _, whole = profile.attend_and_sum(inputs, 20, True)
    monkeypatch.setattr(profile, "SCORES", 1)
    _, sliced = profile.attend_and_sum(inputs, 20, True)
    torch.testing.assert_close(sliced.recent, whole.recent, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kv_heads", [6, 3])
@pytest.mark.parametrize("kernel", [prefill.flash_kernel, prefill.efficient_kernel])
def test_gpu_kernels_are_called_with_the_arguments_that_they_have(kernel, kv_heads):
    """On the meta device, which checks signatures and shapes, not values."""
    query, key = torch.empty(2, 6, 10, 64, device="meta"), torch.empty(2, kv_heads, 10, 64, device="meta")
    output, logsumexp = kernel(query, key, key, 0.1, True)
    assert output.shape == query.shape and logsumexp.shape == query.shape[:-1]
