"""A start: each Mamba block is exactly the convolution that is nearest to its heads' mean attention.

SiLU(u) - SiLU(-u) = u, so a block of `expand` 2 whose channels come in pairs of opposite sign is linear; with open
gates, constant B and C and a constant step it is a convolution. We derived it here and found no publication of it.
It needs the biases of the mixer `mamba_open`; the paper's block has none.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import repeat_kv

from recurformer.heads.run import reading
from recurformer.model.mixer_base import repeat_heads
from recurformer.model.mixer_mamba_open import OPEN, OpenMambaMixer
from recurformer.model.stock import queries_and_keys
from recurformer.recover.pair import ReplacedLayer, replaced_layers

STEP = 0.03
"""Geometric mean of the heads' step sizes, which the kernels leave open: in the middle of the published range."""
ITERATIONS = 300
"""Iterations of L-BFGS for one layer."""


class _Profile:
    """Sums of one layer's attention by lag over all windows."""

    def __init__(self, place: ReplacedLayer, lags: int) -> None:
        self.attention, self.heads = place.original, list(place.converted.layout.replaced)
        self.lags, self.windows = lags, 0
        self.sums: Tensor | float = 0.0

    def add(self, named: dict[str, Any]) -> None:
        """The arguments of the layer's attention."""
        attention, rows = self.attention, named["hidden_states"]
        q, k = queries_and_keys(attention, rows, named["position_embeddings"])
        k = repeat_kv(k, attention.num_key_value_groups)[:, self.heads]
        scores = q[:, self.heads] @ k.mT * attention.scaling
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        weights = scores.masked_fill(future, -torch.inf).float().softmax(-1).sum(0)[..., 1:]  # without the sink
        lags = [weights.diagonal(-1 - lag, -2, -1).mean(-1) for lag in range(self.lags)]
        self.sums = self.sums + torch.stack(lags, 1).double()
        self.windows += len(rows)


@torch.no_grad()
def lag_profiles(
    original: PreTrainedModel, converted: PreTrainedModel, windows: Tensor, *, lags: int = 256, batch_size: int = 1
) -> dict[int, Tensor]:
    """Return the mean attention of each layer's replaced heads by lag, (heads, lags) in float64.

    The first token, the sink of many heads, is left out; nothing is normalised for it.

    Args:
        original: the model that `converted` was converted from.
        converted: names the replaced heads.
        windows: (windows, L) token ids, without padding.
        lags: 0 to `lags` - 1 are measured; at most L - 1 of them.
        batch_size: windows in one forward pass.

    Raises:
        ValueError: windows that are too short, or models that are no pair (`replaced_layers`).
    """
    if windows.ndim != 2 or not len(windows) or not 0 < lags < windows.shape[1]:
        raise ValueError(
            f"windows: expected (windows, tokens) of more than lags={lags} tokens, got {tuple(windows.shape)}"
        )
    places = replaced_layers(original, converted)
    profiles = [_Profile(place, lags) for place in places]
    for batch in windows.to(original.device).split(batch_size):
        with reading(place.original for place in places) as calls:
            original.base_model(batch, use_cache=False)
        for profile, (_, named) in zip(profiles, calls, strict=True):
            profile.add(named)
    return {
        place.index: torch.as_tensor(profile.sums) / profile.windows
        for place, profile in zip(places, profiles, strict=True)
    }


@dataclass(frozen=True)
class Kernels:
    """Causal kernels of H heads that one block can have: taps * (skip delta + step sum_n weights_n exp(-rates_n lag)).

    Attributes:
        taps: of the first convolution, by lag, (H, taps).
        skip: (H,).
        step: positive, (H,).
        rates: in 1/tokens, positive, (H, N).
        weights: B_n C_n, which all channels of a block share, (N,).
    """

    taps: Tensor
    skip: Tensor
    step: Tensor
    rates: Tensor
    weights: Tensor

    def by_lag(self, lags: int) -> Tensor:
        """Return the kernels at lags 0 to `lags` - 1, (H, lags)."""
        time = torch.arange(lags, dtype=self.rates.dtype, device=self.rates.device)
        decays = self.weights @ torch.exp(-self.rates.unsqueeze(-1) * time)  # (H, lags)
        second = self.step.unsqueeze(-1) * decays + self.skip.unsqueeze(-1) * (time == 0)
        delayed = [F.pad(second, (lag, 0))[:, :lags] for lag in range(self.taps.shape[1])]
        return (self.taps.unsqueeze(-1) * torch.stack(delayed, 1)).sum(1)


def fit_kernels(profiles: Tensor, states: int, taps: int) -> Kernels:
    """Fit kernels to profiles (H, lags) by L-BFGS on the sum of their relative squared errors, in float64.

    All heads are fitted at once, for they share `weights`.
    """
    target = profiles.double()
    scale = target.square().sum(1).clamp(min=torch.finfo(torch.float64).tiny)
    heads, lags = target.shape
    rates = torch.linspace(math.log(2 / lags), math.log(2.0), states, dtype=target.dtype, device=target.device)
    first = (torch.arange(taps, device=target.device) == 0).to(target.dtype)
    free = [
        first.repeat(heads, 1),
        target[:, 0].clone(),
        target.mean(1).clamp(min=1e-6).log(),
        rates.repeat(heads, 1),
        torch.full_like(rates, 1 / states),
    ]

    def kernels() -> Kernels:
        taps, skip, step, rates, weights = free
        return Kernels(taps, skip, step.exp(), rates.exp(), weights)

    optimizer = torch.optim.LBFGS(free, max_iter=ITERATIONS, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        error = ((kernels().by_lag(lags) - target).square().sum(1) / scale).sum()
        error.backward()
        return error

    for parameter in free:
        parameter.requires_grad_(True)
    with torch.enable_grad():
        optimizer.step(loss)
    for parameter in free:
        parameter.requires_grad_(False)
    fitted = kernels()
    gauge = STEP / fitted.step.log().mean().exp()
    return Kernels(fitted.taps, fitted.skip, fitted.step * gauge, fitted.rates, fitted.weights / gauge)


@torch.no_grad()
def write_kernels(block: OpenMambaMixer, kernels: Kernels) -> None:
    """Set a block's parameters so that it convolves each head's values with its kernel; one kernel for each head."""
    width = block.out_proj.out_features
    dim = width // len(kernels.skip)

    def by_channel(of_heads: Tensor) -> Tensor:
        """Repeat the value of each head for its channels, (2 width, ...)."""
        return of_heads.repeat_interleave(dim, 0).repeat(2, *[1] * (of_heads.ndim - 1))

    eye = torch.eye(block.in_proj.in_features, device=block.D.device)
    heads = repeat_heads(eye.unflatten(0, (-1, dim)).unsqueeze(0), block.copies).flatten(0, 2)  # (width, features)
    block.in_proj.weight.copy_(torch.cat([heads, -heads, torch.zeros_like(heads).repeat(2, 1)]))
    of_values, of_gate = block.in_proj.bias.chunk(2)
    of_values.zero_(), of_gate.fill_(OPEN)
    taps, bias = block.conv1d.parameters()
    taps.copy_(by_channel(kernels.taps.flip(1)).unsqueeze(1))
    bias.zero_()
    block.x_proj.weight.zero_()
    size = kernels.weights.abs().sqrt()
    block.x_proj.bias.copy_(torch.cat([size.new_zeros(block.dt_rank), size, size * kernels.weights.sign()]))
    step = kernels.step
    block.dt_proj.bias.copy_(by_channel(step + torch.log(-torch.expm1(-step))))  # the inverse of softplus
    block.A_log.copy_(by_channel((kernels.rates / step.unsqueeze(-1)).log()))
    block.D.copy_(by_channel(kernels.skip))
    identity = torch.eye(width, device=eye.device)
    block.out_proj.weight.copy_(torch.cat([identity, -identity], 1))


def exact_start(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    windows: Tensor,
    *,
    lags: int = 256,
    batch_size: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Set each mixer, in place, to the convolution that is nearest to its heads' mean attention by lag.

    Args:
        original: the model that `converted` was converted from; not changed.
        converted: its mixer is `mamba_open`, with `expand` 2.
        windows: (windows, L) token ids, without padding.
        lags: see `lag_profiles`.
        batch_size: windows in one forward pass.
        progress: called with (layers done, layers with replaced heads).

    Returns:
        One row for each replaced head: layer, head, mass (the mean attention, summed over the lags), error (squared
        error of the kernel, as a share of the squared profile).

    Raises:
        ValueError: another mixer or `expand`, or as `lag_profiles` raises.
    """
    mixer, expand = getattr(converted.config, "mixer", "mamba_open"), getattr(converted.config, "mamba_expand", 2)
    if mixer != "mamba_open" or expand != 2:
        raise ValueError(f"converted: mixer 'mamba_open' with expand 2 is needed, this is {mixer!r} with {expand}")
    profiles, rows = lag_profiles(original, converted, windows, lags=lags, batch_size=batch_size), []
    for place in (places := replaced_layers(original, converted)):
        block: Any = place.converted.mixer
        profile = profiles[place.index]
        kernels = fit_kernels(profile, block.d_state, block.d_conv)
        write_kernels(block, kernels)
        errors = (kernels.by_lag(lags) - profile).square().sum(1) / profile.square().sum(1)
        of_heads = zip(place.converted.layout.replaced, profile.sum(1).tolist(), errors.tolist(), strict=True)
        rows += [{"layer": place.index, "head": head, "mass": mass, "error": error} for head, mass, error in of_heads]
        if progress is not None:
            progress(len({row["layer"] for row in rows}), len(places))
    return pd.DataFrame(rows)
