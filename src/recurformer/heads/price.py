"""What a group of heads loses if it keeps fewer tokens, or fewer bits of them: the cost of every choice by one backward
pass, and the cheapest choice for all groups within a budget of bytes.

A group is a key-value head with the query heads that read it: its keys and values leave the cache together.
"""

from collections.abc import Iterator, Sequence
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

from recurformer.data import IGNORED
from recurformer.heads.attention import Progress, attending, causal_attention, check_batch, logits_of, reading
from recurformer.heads.probes import Labelled
from recurformer.model.config import MODEL_TYPE_PREFIX
from recurformer.model.layout import sliding_layers

FULL_BITS = 16  # of the stored model: what is not rounded
KEY_BLOCK = 64  # tokens whose keys of 4 bits share a scale, channel by channel
ROWS = 128  # queries whose scores exist at the same time
WORDS = 512  # tokens whose logits exist at the same time


@dataclass(frozen=True)
class Keep:
    """What a group keeps in the cache.

    Attributes:
        window: latest tokens, beside the first ones; None is all tokens.
        bits: of each number of their keys and values.
    """

    window: int | None = None
    bits: int = FULL_BITS

    def bytes(self, length: int, head_dim: int, sink_tokens: int) -> float:
        """Return the size of one key-value head after `length` tokens, with the scales of what is rounded.

        A scale and a zero of 16 bits each belong to every token's keys of 8 bits and values of 8 or 4 bits, and to
        every channel of a block of `KEY_BLOCK` tokens of keys of 4 bits.
        """
        tokens = length if self.window is None else min(self.window + sink_tokens, length)
        numbers = tokens * 2 * head_dim * self.bits / 8
        if self.bits == FULL_BITS:
            return numbers
        scales = {8: 2 * tokens, 4: tokens + head_dim * -(-tokens // KEY_BLOCK)}[self.bits]
        return numbers + 4 * scales


def choices(windows: Sequence[int], bits: Sequence[int] = (FULL_BITS,)) -> list[Keep]:
    """Return what `price` prices, in its order: for all bits every window from the smallest on, then all tokens."""
    return [Keep(window, each) for each in bits for window in [*sorted(windows), None]]


def rounded(states: Tensor, bits: int, block: int | None = None) -> Tensor:
    """Return states (B, heads, L, D) as whole numbers of `bits` bits can tell them.

    The least and the greatest number of a token are exact; with `block`, those of every channel over `block` tokens.
    """
    if block is not None:
        parts = states.split(block, 2)
        return torch.cat([rounded(part.mT, bits).mT for part in parts], 2)
    least, most = states.amin(-1, keepdim=True), states.amax(-1, keepdim=True)
    step = ((most - least) / (2**bits - 1)).clamp(min=torch.finfo(states.dtype).tiny)
    return ((states - least) / step).round() * step + least


def _as_kept(key: Tensor, value: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return keys and values as a cache of `bits` bits gives them back."""
    if bits == FULL_BITS:
        return key, value
    return rounded(key, bits, KEY_BLOCK if bits == 4 else None), rounded(value, bits)


def _bands(start: int, stop: int, windows: Sequence[int], sinks: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield for the sinks, for every window what it adds to the one before, and for the rest: a run of keys, and which
    of them the queries from `start` to `stop` see there, (queries, keys).
    """
    queries = torch.arange(start, stop)[:, None]
    first = torch.arange(min(sinks, stop))
    yield slice(0, len(first)), first <= queries
    edges = [0, *windows, stop]
    for near, far in pairwise(edges):
        begin = max(start - far + 1, sinks)
        run = slice(begin, max(stop - near, begin))
        distance = queries - torch.arange(run.start, run.stop)
        yield run, (distance >= near) & (distance < far)


def _products(
    query: Tensor, gradient: Tensor, key: Tensor, value: Tensor, windows: Sequence[int], sinks: int, scaling: float
) -> Iterator[tuple[slice, Tensor]]:
    """Yield, by blocks of queries, the products of the output and its gradient under every window and without one.

    The windows lie in each other. So one pass over the keys serves all: it sums what each adds to the one before.

    Args:
        query: (B, H, L, D).
        gradient: of the output, (B, H, L, D).
        key: (B, KV heads, L, D).
        value: likewise.
        windows: ascending.
        sinks: first tokens that are always seen.
        scaling: of the scores.

    Yields:
        the queries, and (B, H, queries, windows + 1) in float64.
    """
    batch, heads, length, _ = query.shape
    wide = torch.promote_types(query.dtype, torch.float32)

    def over(rows: Tensor, keys: Tensor) -> Tensor:
        """Products (B, H, queries, keys) of rows of query heads with the KV heads that they read."""
        grouped = rows.to(wide).unflatten(1, (keys.shape[1], -1)).flatten(2, 3)
        return (grouped @ keys.to(wide).mT).view(batch, heads, rows.shape[2], -1)

    for start in range(0, length, ROWS):
        rows = slice(start, min(start + ROWS, length))
        shape = (batch, heads, rows.stop - start)
        most = query.new_full(shape, -torch.inf, dtype=torch.float64)
        total, weighted = torch.zeros_like(most), torch.zeros_like(most)
        sums = []
        for run, seen in _bands(start, rows.stop, windows, sinks):
            if run.stop > run.start:
                scores = (over(query[:, :, rows], key[:, :, run]) * scaling).masked_fill_(
                    ~seen.to(query.device), -torch.inf
                )
                highest = torch.maximum(most, scores.amax(-1).double())
                base = highest.masked_fill(highest == -torch.inf, 0)
                weights = scores.sub_(base.unsqueeze(-1).to(wide)).exp_()
                left = (most - base).exp()
                total = total * left + weights.sum(-1, dtype=torch.float64)
                products = weights.mul_(over(gradient[:, :, rows], value[:, :, run]))
                weighted = weighted * left + products.sum(-1, dtype=torch.float64)
                most = highest
            sums.append(weighted / total)
        yield rows, torch.stack(sums[1:], -1)  # the sinks alone are no choice


class _Pricing:
    """Attends as the model does and remembers the last layer's call; an `Attend`."""

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
    ) -> Tensor:
        self.output = causal_attention(query, key, value, mask, scaling)  # (B, L, H, D)
        self.states = query.detach(), key.detach(), value.detach()
        self.scaling = scaling
        return self.output


def _layer_costs(seen: _Pricing, gradient: Tensor, windows: Sequence[int], bits: Sequence[int], sinks: int) -> Tensor:
    """Return half the squared change of the log-likelihood by each choice, summed over tokens, (KV heads, choices)."""
    query, key, value = seen.states
    unchanged = (gradient.double() * seen.output.detach().double()).sum(-1).transpose(1, 2)  # (B, H, L)
    gradient, costs = gradient.transpose(1, 2), []
    for each in bits:
        cost = torch.zeros(key.shape[1], len(windows) + 1, dtype=torch.float64)
        kept = _as_kept(key, value, each)
        for rows, products in _products(query, gradient, *kept, windows, sinks, seen.scaling):
            change = products - unchanged[:, :, rows, None]  # (B, H, queries, windows + 1)
            of_group = change.unflatten(1, (key.shape[1], -1)).sum(2)
            cost += of_group.square().sum((0, 2)).cpu() / 2
        costs.append(cost)
    return torch.cat(costs, -1)


def _drawn_gradient(model: PreTrainedModel, hidden: Tensor, counted: Tensor, draws: torch.Generator) -> Tensor:
    """Return the gradient of the log-likelihood of tokens that the model draws, at its last states (1, L, hidden).

    Args:
        model: the language model.
        hidden: states after the last norm, (1, L, hidden).
        counted: the places whose next token counts, (L,) bool.
        draws: of the tokens.
    """
    gradient = torch.zeros_like(hidden)
    for places in counted.nonzero()[:, 0].split(WORDS):
        part = hidden[0, places].detach().requires_grad_()
        with torch.enable_grad():
            logits = logits_of(model, part)
            likely = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)  # (places, words)
            drawn = torch.multinomial(likely.detach().exp().cpu(), 1, generator=draws).to(likely.device)
            (gradient[0, places],) = torch.autograd.grad(likely.gather(1, drawn).sum(), part)
    return gradient


@torch.no_grad()
def price(
    model: PreTrainedModel,
    input_ids: Tensor,
    windows: Sequence[int],
    bits: Sequence[int] = (FULL_BITS,),
    predicted: Tensor | None = None,
    sink_tokens: int = 4,
    seed: int = 0,
    progress: Progress = None,
) -> Tensor:
    """Estimate what each choice of a group costs if all other groups stay as they are.

    The cost is the KL divergence of the changed model's predictions from the model's own, to the second order in the
    change of the group's output: half the mean square of the change's product with the gradient of the log-likelihood,
    at tokens that the model draws (the Fisher information's empirical form). One forward and one backward pass a sample
    serve all groups and all choices; a layer is computed anew when the backward pass reaches it, so that one layer's
    states exist at a time.

    Args:
        model: a causal language model of Llama's build, not converted.
        input_ids: (samples, L) without padding, as long as the inputs for which the budget counts.
        windows: latest tokens that a group may keep; each below L, else it hides nothing.
        bits: of the numbers in the cache: 16 (as they are), 8 or 4.
        predicted: the tokens whose prediction counts, (samples, L) bool; None is all but the first.
        sink_tokens: first tokens that every window keeps beside.
        seed: of the drawn tokens.
        progress: called with (samples done, samples).

    Returns:
        (layers, KV heads, choices) float64 in the order of `choices`, in nats a counted token; NaN in layers with a
        sliding window of their own.

    Raises:
        ValueError: empty input, nothing to predict, windows or bits that cannot be, or a converted model.
    """
    check_batch(input_ids)
    windows = sorted(windows)
    if not windows or windows[0] < 1 or windows[-1] >= input_ids.shape[1]:
        raise ValueError(f"windows={windows} must be at least 1 and below the {input_ids.shape[1]} tokens of a sample")
    unknown = set(bits) - {FULL_BITS, 8, 4}
    if unknown or not bits:
        raise ValueError(f"bits={list(bits)} must be among 16, 8 and 4")
    if model.config.model_type.startswith(MODEL_TYPE_PREFIX):
        raise ValueError(f"the model is a converted one ({model.config.model_type}): price the heads of its original")
    predicted = torch.ones_like(input_ids, dtype=torch.bool) if predicted is None else predicted.bool()
    if not predicted[:, 1:].any():
        raise ValueError("nothing is predicted: there is no cost")
    counted = F.pad(predicted[:, 1:], (0, 1))  # at the place that predicts
    base: Any = attending(model).base_model
    config, sliding, draws = model.config, sliding_layers(model.config), torch.Generator().manual_seed(seed)
    costs = torch.zeros(len(base.layers), config.num_key_value_heads, len(choices(windows, bits)), dtype=torch.float64)
    seen = _Pricing()
    for index, sample in enumerate(input_ids):
        with reading([*base.layers, base.norm]) as calls:
            hidden = base(sample[None].to(model.device), use_cache=False, attend=seen).last_hidden_state
        upstream = _drawn_gradient(model, hidden, counted[index], draws)
        modules = [*base.layers, base.norm]
        for layer in reversed(range(len(modules))):
            (states, *_), named = calls[layer]
            states = states.detach().requires_grad_()
            with torch.enable_grad():
                if layer == len(base.layers):
                    (upstream,) = torch.autograd.grad(base.norm(states), states, upstream)
                    continue
                output = modules[layer](states, **{**named, "attend": seen})
                upstream, gradient = torch.autograd.grad(output, (states, seen.output), upstream)
            if layer not in sliding:
                costs[layer] += _layer_costs(seen, gradient, windows, bits, sink_tokens)
        if progress is not None:
            progress(index + 1, len(input_ids))
    costs[sliding] = float("nan")
    return costs / counted.sum()


def price_text_and_needles(
    model: PreTrainedModel,
    text: Tensor,
    needles: Labelled,
    windows: Sequence[int],
    *,
    sink_tokens: int,
    needle_weight: float,
    seed: int = 0,
    progress: Progress = None,
) -> Tensor:
    """Return the costs of windows on text, and in addition on what must be looked up in it: see `price`.

    Args:
        model: as of `price`.
        text: (samples, L), all of whose tokens count.
        needles: samples whose labels count alone. A window that is as long as they are hides nothing there.
        windows: as of `price`.
        sink_tokens: as of `price`.
        needle_weight: what a looked-up token counts; a token of text counts 1.
        seed: as of `price`.
        progress: called with (samples done, samples), of both kinds together.

    Returns:
        (layers, KV heads, windows + 1) float64, in nats a token.

    Raises:
        ValueError: as of `price`.
    """
    samples = len(text) + len(needles.input_ids)

    def after(before: int) -> Progress:
        return None if progress is None else lambda done, _: progress(before + done, samples)

    costs = price(model, text, windows, sink_tokens=sink_tokens, seed=seed, progress=after(0))
    fitting = [window for window in sorted(windows) if window < needles.input_ids.shape[1]]
    if fitting:
        predicted, progress_of_needles = needles.labels != IGNORED, after(len(text))
        looked_up = price(
            model, needles.input_ids, fitting, predicted=predicted, sink_tokens=sink_tokens, seed=seed,
            progress=progress_of_needles,
        )  # fmt: skip
        costs[..., : len(fitting)] += needle_weight * looked_up[..., :-1]
    return costs


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


def windows_by_group(chosen: Tensor, kept: Sequence[Keep], query_heads: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the arguments `heads` and `window_tokens` of `convert` for the choices of `allocate`.

    Args:
        chosen: places in `kept`, (layers, KV heads).
        kept: of `choices`, all with 16 bits; what keeps all tokens is not replaced.
        query_heads: query heads of a layer.

    Raises:
        ValueError: a choice rounds its numbers, which no cache holds yet.
    """
    rounding = next((keep for keep in kept if keep.bits != FULL_BITS), None)
    if rounding is not None:
        raise ValueError(f"{rounding}: a cache of {rounding.bits} bits is not supported; choose among 16 bits alone")
    each = query_heads // chosen.shape[1]
    heads, windows = [], []
    for layer in chosen.tolist():
        replaced = [(group, kept[place].window) for group, place in enumerate(layer) if kept[place].window is not None]
        heads.append([head for group, _ in replaced for head in range(group * each, (group + 1) * each)])
        windows.append([window for _, window in replaced])
    return heads, windows
