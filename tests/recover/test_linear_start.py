"""The linear start: the paper's block computes averages of values with known weights by lag."""

import pytest
import torch

from recurformer import calibrate, convert
from recurformer.heads.attention import reading
from recurformer.model.mamba import MambaBlock
from recurformer.recover.calibrate import KERNELS, Kernel, linear_start
from recurformer.recover.pair import replaced_layers
from tests.model.tiny_models import MAMBA, make_backbone, tokens


def weights_by_lag(kernel: Kernel, length: int) -> torch.Tensor:
    lags = torch.arange(length).double()
    return torch.exp(-lags / kernel.reach) if kernel.reach else (lags == kernel.lag).double()


def averaged(values, weights):
    """Sums of values (B, L, F) of earlier tokens by weights (lags,)."""
    lags = torch.arange(values.shape[1])[:, None] - torch.arange(values.shape[1])
    matrix = torch.where(lags >= 0, weights[lags.clamp(min=0)], 0.0)
    return torch.einsum("ts,bsf->btf", matrix, values)


@pytest.mark.parametrize("copies", [(1, 1), (3, 3), (2, 1)], ids=str)
def test_channels_are_averages_of_values(copies):
    torch.manual_seed(0)
    heads, dim = sum(copies), 24
    block = MambaBlock(heads * dim, 8, 4, 2, 6, 0, copies).double()
    width = len(copies) * dim
    noise, mean = torch.randn(16, 60, width, dtype=torch.float64), torch.randn(width, dtype=torch.float64)
    values = averaged(noise, weights_by_lag(Kernel(reach=10), 60)) + 5 * mean  # neighbours are alike, as in text
    linear_start(block, values)
    with torch.no_grad(), reading([block.out_proj]) as calls:
        block(values)
    (((channels,), _),) = calls
    groups = max(1, round(2 / 3 * 2 * heads / len(copies)))
    for group, kernel in enumerate(KERNELS[:groups]):
        ours = channels[:, 10:, group * width : (group + 1) * width].flatten(0, 1)
        expected = averaged(values, weights_by_lag(kernel, 60))[:, 10:].flatten(0, 1)
        ours, expected = ours - ours.mean(0), expected - expected.mean(0)
        alike = (ours * expected).sum(0) / (ours.norm(dim=0) * expected.norm(dim=0))
        assert alike.mean() > (0.9 if kernel.reach < 10 else 0.7), kernel


def test_the_readout_then_finds_heads_that_look_at_places():
    """Heads that average values by lag are out of reach of the random start, and within that of the linear one."""
    errors = {}
    for start in ("random", "linear"):
        original = make_backbone("llama_gqa_tied").double()
        original.model.embed_tokens.weight.data += 1  # values of real models have a mean
        torch.manual_seed(1)
        converted = convert(original, [[], [], [0, 1, 2, 3]], **MAMBA)
        (place,) = replaced_layers(original, converted)
        read = {}

        def local_heads(_, arguments, place=place, read=read):
            values = place.converted.read(read["hidden_states"]).unflatten(2, (2, -1)).repeat_interleave(2, 2)
            kernels = [Kernel(lag=1), Kernel(reach=6), Kernel(), Kernel(reach=6)]
            heads = [
                averaged(values[:, :, head], weights_by_lag(kernel, values.shape[1]))
                for head, kernel in enumerate(kernels)
            ]
            outputs = arguments[0].clone()
            outputs[..., place.features] = torch.cat(heads, -1)
            return (outputs,)

        place.original.register_forward_pre_hook(
            lambda _, arguments, named, read=read: read.update(named), with_kwargs=True
        )
        place.original.o_proj.register_forward_pre_hook(local_heads)
        errors[start] = calibrate(original, converted, tokens(64, 32), start=start).after.item()
    assert errors["linear"] < 0.4 * errors["random"], errors


def test_only_mamba_blocks_start_so():
    with pytest.raises(ValueError, match="start: linear is for Mamba blocks, not for a Linear"):
        linear_start(torch.nn.Linear(2, 2), torch.ones(1, 2, 2))


def test_values_that_never_change_do_no_harm():
    """Some features of real models are constant, such as a bias whose projection is zero."""
    torch.manual_seed(0)
    block, values = MambaBlock(16, 8, 4, 2, 6, 0), torch.randn(2, 40, 16)
    values[..., :3] = torch.tensor([0.0, 1.0, -2.0])
    linear_start(block, values)
    assert block(values).isfinite().all()
