"""What a group of heads loses if it keeps fewer tokens, or fewer bits of them: the cost of every choice by one backward
pass, and the cheapest choice for all groups within a budget of bytes.

A group is a key-value head with the query heads that read it: its keys and values leave the cache together.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import eye_array, kron
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from recurformer.heads.attention import (
    ROWS,
    Progress,
    attending,
    causal_attention,
    check_batch,
    logits_of,
    reading,
)
from recurformer.model.config import MODEL_TYPE_PREFIX
from recurformer.model.layout import sliding_layers
from recurformer.model.packed import BITS, FULL_BITS, as_kept, packed_bytes

EVERY = 4  # one query in so many is read for the costs of bits
HEAVY = 2.0  # predictions of so many times the mean weight are read always
WORDS = 128  # tokens whose logits exist at the same time


@dataclass(frozen=True)
class Keep:
    """What a group keeps in the cache.

    Attributes:
        window: latest tokens, beside the first ones; None is all tokens.
        bits: of each number of their keys and values.
    """

    window: int | None = None
    bits: int = FULL_BITS

    def bytes(self, length: int, head_dim: int, sink_tokens: int) -> int:
        """Return the size of one key-value head after `length` tokens in a model of 16 bits, scales included."""
        tokens = length if self.window is None else min(self.window + sink_tokens, length)
        return tokens * 2 * packed_bytes(head_dim, self.bits)


def choices(windows: Sequence[int], bits: Sequence[int] = (FULL_BITS,)) -> list[Keep]:
    """Return what `price` prices, in its order: for all bits every window from the smallest on, then all tokens."""
    return [Keep(window, each) for each in bits for window in [*sorted(windows), None]]


def _of_groups(rows: Tensor, keys: Tensor) -> Tensor:
    """Return the products (B, H, queries, keys) of rows of query heads with the KV heads that they read."""
    grouped = rows.unflatten(1, (keys.shape[1], -1)).flatten(2, 3)
    return (grouped @ keys.mT).view(*rows.shape[:3], -1)


def _by_distance(x: Tensor) -> Tensor:
    """Return a view of x (..., queries, keys + queries) by the distance from a query to a key, (..., queries, keys).

    The queries are the last of as many as there are keys. x has the keys latest first, then what would lie before them.
    """
    *outer, queries, columns = x.shape
    return x.as_strided((*outer, queries, columns - queries), (*x.stride()[:-2], columns - 1, 1), queries - 1)


def _products(
    query: Tensor, gradient: Tensor, key: Tensor, value: Tensor, windows: Sequence[int], sinks: int
) -> Tensor:
    """Return the products of the output and its gradient under every window and without one.

    The windows lie in each other. So one pass over the keys serves all: it sums what each adds to the one before, in
    the tensors' own type within an addition and in float64 between them.

    Args:
        query: (B, H, L, D), scaled.
        gradient: of the output, (B, H, L, D).
        key: (B, KV heads, L, D).
        value: likewise.
        windows: ascending.
        sinks: first tokens that are always seen.

    Returns:
        (B, H, L, windows + 1) in float64.
    """
    blocks = []
    for start in range(0, query.shape[2], ROWS):
        stop = min(start + ROWS, query.shape[2])
        scores, effects = (
            _of_groups(rows[:, :, start:stop], F.pad(keys[:, :, :stop].flip(2), (0, 0, 0, stop - start)))
            for rows, keys in ((query, key), (gradient, value))
        )  # (B, H, queries, keys + queries)
        first = torch.arange(min(sinks, stop), device=query.device).flip(0)
        later = first > torch.arange(start, stop, device=query.device)[:, None]
        seen_always = slice(stop - len(first), stop)
        runs = [(scores[..., seen_always].masked_fill(later, -torch.inf), effects[..., seen_always])]
        scores[..., seen_always.start :] = -torch.inf
        scores, effects = _by_distance(scores), _by_distance(effects)
        runs += [(scores[..., near:far], effects[..., near:far]) for near, far in pairwise([0, *windows, stop])]
        most = query.new_full(scores.shape[:-1], -torch.inf, dtype=torch.float64)
        total, weighted = torch.zeros_like(most), torch.zeros_like(most)
        sums = []
        for run, effect in runs:
            if run.shape[-1]:
                highest = torch.maximum(most, run.amax(-1).double())
                weights = (run - highest.to(run).unsqueeze(-1)).exp_()
                left = (most - highest).exp()
                total = total * left + weights.sum(-1)
                weighted = weighted * left + weights.mul_(effect).sum(-1)
                most = highest
            sums.append(weighted / total)
        blocks.append(torch.stack(sums[1:], -1))  # the sinks alone are no choice
    return torch.cat(blocks, 2)


def _whole_products(query: Tensor, gradient: Tensor, key: Tensor, value: Tensor, places: Tensor) -> Tensor:
    """Return the products of `_products` without a window, of the queries at ascending `places`, (B, H, queries)."""
    blocks = []
    for at in places.split(ROWS):
        stop = int(at[-1]) + 1
        seen = torch.arange(stop, device=query.device) <= at.to(query.device)[:, None]
        # (B, queries, H, D)
        output = causal_attention(query[:, :, at], key[:, :, :stop], value[:, :, :stop], seen, 1.0)
        blocks.append((output.transpose(1, 2) * gradient[:, :, at]).sum(-1).double())
    return torch.cat(blocks, 2)


@dataclass(frozen=True)
class Passed:
    """One layer in the backward pass of one sample.

    Attributes:
        weights: of the predictions at all places of the sample, (L,); see `price`.
        layer: index of the layer.
        hidden: states that enter the layer, (1, L, hidden).
        arguments: of the layer beside them, by name.
        query: as attention reads it, rotated, (1, H, L, D).
        key: likewise, (1, KV heads, L, D).
        value: likewise.
        scaling: of the scores.
        output: of attention, (1, L, H, D).
        gradient: of the weighted log-likelihood at the output, (1, L, H, D).
    """

    weights: Tensor
    layer: int
    hidden: Tensor
    arguments: dict[str, Any]
    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    output: Tensor
    gradient: Tensor


@torch.no_grad()
def key_centers(model: PreTrainedModel, input_ids: Tensor) -> Tensor:
    """Return the mean of each head's keys as attention reads them, (layers, KV heads, head_dim) float64.

    Keys of fewer bits are packed without it: a softmax over keys ignores what all of them share.

    Args:
        model: a causal language model of Llama's build, not converted.
        input_ids: (samples, L) without padding.
    """
    check_batch(input_ids)
    sums: dict[int, Tensor] = {}

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
        sums[layer] = sums.get(layer, 0) + key.double().mean(2).sum(0).cpu()
        return causal_attention(query, key, value, mask, scaling)

    base: Any = attending(model).base_model
    for sample in input_ids:
        base(sample[None].to(model.device), use_cache=False, attend=attend)
    return torch.stack([sums[layer] for layer in sorted(sums)]) / len(input_ids)


def cost_by_group(change: Tensor, groups: int, times: Tensor | None = None) -> Tensor:
    """Return half the square of the change of each group's product with the gradient, summed over queries.

    Args:
        change: of each query head, (B, H, queries, choices).
        groups: of query heads in a row.
        times: how often each query counts, (queries,); None is once.

    Returns:
        (groups, choices) on the CPU.
    """
    squares = change.unflatten(1, (groups, -1)).sum(2).square()  # (B, groups, queries, choices)
    squares = squares if times is None else squares * times.to(squares).unsqueeze(-1)
    return squares.sum((0, 2)).cpu() / 2


def _sampled(weights: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the places of the queries that are read for the bits, and how many queries each stands for.

    One is drawn of every `EVERY` in a row: a fixed distance would meet the lines of lookups always at the same token.

    Args:
        weights: of the predictions at all places, (L,).
        draws: of the places.
    """
    first = torch.arange(0, len(weights), EVERY)
    drawn = first + torch.randint(EVERY, first.shape, generator=draws)
    heavy = weights > HEAVY * weights.mean()
    read = heavy.clone()
    read[drawn[drawn < len(weights)]] = True
    places = read.nonzero()[:, 0]
    return places, torch.where(heavy[places], 1, EVERY)


def _layer_costs(
    passed: Passed,
    windows: Sequence[int],
    bits: Sequence[int],
    sinks: int,
    center: Tensor | None,
    read: tuple[Tensor, Tensor],
) -> Tensor:
    """Return half the squared change of the log-likelihood, summed over tokens, by each window, by all tokens, and by
    all tokens of each number of bits, (KV heads, windows + 1 + bits).

    For the bits, the queries of `_sampled` are read.
    """
    wide = torch.promote_types(passed.query.dtype, torch.float32)
    query, key, value = (states.to(wide) for states in (passed.query, passed.key, passed.value))
    query, gradient, groups = query * passed.scaling, passed.gradient.transpose(1, 2).to(wide), key.shape[1]
    products = _products(query, gradient, key, value, windows, sinks)
    costs = [cost_by_group(products - products[..., -1:], groups)]
    places, times = read
    for each in bits:
        if each == FULL_BITS:
            costs.append(torch.zeros_like(costs[0][:, :1]))
            continue
        kept = as_kept(key, value, each, center)
        change = _whole_products(query, gradient, *kept, places) - products[:, :, places, -1]
        costs.append(cost_by_group(change.unsqueeze(-1), groups, times))
    return torch.cat(costs, -1)


def _drawn(likely: Tensor, draws: torch.Generator) -> Tensor:
    """Return a word for each row of log probabilities (places, words), drawn by one number each, (places, 1)."""
    reached = likely.exp().double().cumsum(-1)
    number = torch.rand(len(likely), 1, dtype=torch.float64, generator=draws).to(reached.device)
    return torch.searchsorted(reached, number * reached[:, -1:], right=True).clamp(max=likely.shape[-1] - 1)


def _drawn_gradient(model: PreTrainedModel, hidden: Tensor, weights: Tensor, draws: torch.Generator) -> Tensor:
    """Return the gradient of the log-likelihood of tokens that the model draws, at its last states (1, L, hidden).

    Args:
        model: the language model.
        hidden: states after the last norm, (1, L, hidden).
        weights: of the tokens after each place, (L,); each likelihood counts by the root of its weight.
        draws: of the tokens.
    """
    gradient = torch.zeros_like(hidden)
    for places in weights.nonzero()[:, 0].split(WORDS):
        part = hidden[0, places].detach().requires_grad_()
        with torch.enable_grad():
            logits = logits_of(model, part)
            likely = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)  # (places, words)
            of_drawn = likely.gather(1, _drawn(likely.detach(), draws))[:, 0]
            (gradient[0, places],) = torch.autograd.grad(of_drawn @ weights[places].sqrt().to(of_drawn), part)
    return gradient


def _weights(input_ids: Tensor, weights: Tensor | None) -> Tensor:
    """What is predicted at each place counts so much, (samples, L)."""
    weights = torch.full(input_ids.shape, 1 / (input_ids.shape[1] - 1)) if weights is None else weights
    if not (weights >= 0).all() or not weights[:, 1:].any():
        raise ValueError("weights must be at least 0, and some above: else nothing is predicted and there is no cost")
    return F.pad(weights[:, 1:], (0, 1))


@torch.no_grad()
def backward(
    model: PreTrainedModel,
    input_ids: Tensor,
    weights: Tensor | None = None,
    seed: int = 0,
    progress: Progress = None,
) -> Iterator[Passed]:
    """Yield every layer of every sample, the last layer first, with the gradient at attention's output.

    The gradient is of the log-likelihood of tokens that the model draws. A layer is computed anew when the backward
    pass reaches it, so that one layer's states exist at a time. For the arguments and what is refused see `price`.
    """
    check_batch(input_ids)
    if model.config.model_type.startswith(MODEL_TYPE_PREFIX):
        raise ValueError(f"the model is a converted one ({model.config.model_type}): price the heads of its original")
    weights = _weights(input_ids, weights)
    base: Any = attending(model).base_model
    modules, draws = [*base.layers, base.norm], torch.Generator().manual_seed(seed)
    last: list[Any] = []  # call of attention

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
        output = causal_attention(query, key, value, mask, scaling)  # (B, L, H, D)
        last[:] = query.detach(), key.detach(), value.detach(), scaling, output
        return output

    for done, (sample, counted) in enumerate(zip(input_ids, weights, strict=True), start=1):
        with reading(modules) as calls:
            hidden = base(sample[None].to(model.device), use_cache=False, attend=attend).last_hidden_state
        upstream = _drawn_gradient(model, hidden, counted, draws)
        for layer in reversed(range(len(modules))):
            (states, *_), named = calls[layer]
            states = states.detach().requires_grad_()
            with torch.enable_grad():
                if layer == len(base.layers):
                    (upstream,) = torch.autograd.grad(base.norm(states), states, upstream)
                    continue
                result = modules[layer](states, **{**named, "attend": attend})
                query, key, value, scaling, output = last
                upstream, gradient = torch.autograd.grad(result, (states, output), upstream)
            yield Passed(counted, layer, states.detach(), named, query, key, value, scaling, output.detach(), gradient)
        if progress is not None:
            progress(done, len(input_ids))


@torch.no_grad()
def price(
    model: PreTrainedModel,
    input_ids: Tensor,
    windows: Sequence[int],
    bits: Sequence[int] = (FULL_BITS,),
    weights: Tensor | None = None,
    sink_tokens: int = 4,
    centers: Tensor | None = None,
    seed: int = 0,
    progress: Progress = None,
) -> Tensor:
    """Estimate what each choice of a group costs if all other groups stay as they are.

    The cost estimates the KL divergence of the changed model's predictions from the model's own, to the second order in
    the change of the group's output: half the square of the change's product with the gradient of the log-likelihood,
    at tokens that the model draws (Fisher information). Changes at different tokens are taken as independent. One
    forward and one backward pass a sample serve all groups and all choices. What a window costs and what fewer bits of
    all tokens cost are measured and added up.

    Args:
        model: a causal language model of Llama's build, not converted.
        input_ids: (samples, L) without padding, as long as the inputs for which the budget counts.
        windows: latest tokens that a group may keep; each below L, else it hides nothing.
        bits: of the numbers in the cache: 16 (as they are), 8, 6, 5 or 4.
        weights: what the prediction of each token counts, (samples, L); the first one's is not read. A sample's cost is
            the sum. None: all the same, 1 together.
        sink_tokens: first tokens that every window keeps beside.
        centers: of the keys, taken from those of fewer bits: see `key_centers`; None takes nothing.
        seed: of the drawn tokens.
        progress: called with (samples done, samples).

    Returns:
        (layers, KV heads, choices) float64 in the order of `choices`: nats, weighted, the samples' mean; NaN in layers
        with a sliding window of their own.

    Raises:
        ValueError: empty input, no weights or negative ones, windows or bits that cannot be, or a converted model.
    """
    check_batch(input_ids)
    windows = sorted(windows)
    if windows and (windows[0] < 1 or windows[-1] >= input_ids.shape[1]):
        raise ValueError(f"windows={windows} must be at least 1 and below the {input_ids.shape[1]} tokens of a sample")
    if set(bits) - set(BITS) or not bits:
        raise ValueError(f"bits={list(bits)} must be among {', '.join(map(str, BITS))}")
    config, sliding, count = model.config, sliding_layers(model.config), len(windows) + 1
    shape = config.num_hidden_layers, config.num_key_value_heads, count + len(bits)
    singles, draws = torch.zeros(shape, dtype=torch.float64), torch.Generator().manual_seed(seed)
    for passed in backward(model, input_ids, weights, seed, progress):
        layer = passed.layer
        if layer not in sliding:
            center = None if centers is None else centers[layer].unsqueeze(1).to(passed.key)  # (KV heads, 1, D)
            read = _sampled(passed.weights, draws)
            singles[layer] += _layer_costs(passed, windows, bits, sink_tokens, center, read)
    singles[sliding] = float("nan")
    of_windows, of_bits = (singles / len(input_ids)).split([count, len(bits)], -1)
    return (of_bits.unsqueeze(-1) + of_windows.unsqueeze(-2)).flatten(-2)


@contextmanager
def _without_output() -> Iterator[None]:
    """Let C code write nothing to the standard output: the solver prints lines of its own, whatever it is told."""
    sys.stdout.flush()
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)


def allocate(costs: Tensor, sizes: Sequence[float], budget: float) -> Tensor:
    """Return the choice of every group, (...), with the least sum of costs whose sizes' sum stays within the budget.

    Args:
        costs: of every group's choices, (..., choices), finite.
        sizes: of the choices, in bytes.
        budget: in bytes, for all groups together.

    Raises:
        ValueError: the smallest choices are too large together, or costs are not finite.
    """
    table = costs.flatten(0, -2).double()  # (groups, choices)
    groups, count = table.shape
    if not table.isfinite().all():
        raise ValueError("costs must be finite: leave out the groups that have none")
    if min(sizes) * groups > budget:
        raise ValueError(
            f"budget={budget:g} bytes: the smallest choice of all {groups} groups needs {min(sizes) * groups:g}"
        )
    scale = float(table.abs().max()) or 1.0
    of_group = kron(eye_array(groups), np.ones((1, count)))  # one choice each
    within = np.tile(np.asarray(sizes, dtype=float) * groups / budget, groups)[None]
    with _without_output():
        solved = milp(
            table.flatten().numpy() / scale * 1e3,  # the solver's tolerances are absolute
            integrality=np.ones(groups * count),
            bounds=Bounds(0, 1),
            constraints=[LinearConstraint(of_group, 1, 1), LinearConstraint(within, -np.inf, groups)],
            options={"mip_rel_gap": 0.0},
        )
    if not solved.success:
        raise ValueError(f"no choice was found: {solved.message}")
    return torch.from_numpy(solved.x.reshape(groups, count).argmax(1)).view(costs.shape[:-1])


def windows_by_group(chosen: Sequence[Sequence[Keep]], config: Any) -> dict[str, list[list[int]]]:
    """Return the arguments `heads`, `window_tokens` and `window_bits` of `convert` for what each group keeps.

    Args:
        chosen: for each layer, of its key-value heads. What keeps all tokens as they are is not replaced; all tokens
            of fewer bits are a window as long as the model reads.
        config: of the original.
    """
    each = config.num_attention_heads // config.num_key_value_heads
    arguments: dict[str, list[list[int]]] = {"heads": [], "window_tokens": [], "window_bits": []}
    for layer in chosen:
        replaced = [(group, keep) for group, keep in enumerate(layer) if keep != Keep()]
        arguments["heads"].append([group * each + head for group, _ in replaced for head in range(each)])
        arguments["window_tokens"].append([keep.window or config.max_position_embeddings for _, keep in replaced])
        arguments["window_bits"].append([keep.bits for _, keep in replaced])
    return arguments
