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
from recurformer.model.packed import BITS, FULL_BITS, as_kept, packed_bytes

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

    def bytes(self, length: int, head_dim: int, sink_tokens: int) -> int:
        """Return the size of one key-value head after `length` tokens in a model of 16 bits, scales included."""
        tokens = length if self.window is None else min(self.window + sink_tokens, length)
        return tokens * 2 * packed_bytes(head_dim, self.bits)


def choices(windows: Sequence[int], bits: Sequence[int] = (FULL_BITS,)) -> list[Keep]:
    """Return what `price` prices, in its order: for all bits every window from the smallest on, then all tokens."""
    return [Keep(window, each) for each in bits for window in [*sorted(windows), None]]


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


def _layer_costs(
    seen: _Pricing, gradient: Tensor, windows: Sequence[int], bits: Sequence[int], sinks: int, center: Tensor | None
) -> Tensor:
    """Return half the squared change of the log-likelihood by each choice, summed over tokens, (KV heads, choices)."""
    query, key, value = seen.states
    unchanged = (gradient.double() * seen.output.detach().double()).sum(-1).transpose(1, 2)  # (B, H, L)
    gradient, costs = gradient.transpose(1, 2), []
    for each in bits:
        cost = torch.zeros(key.shape[1], len(windows) + 1, dtype=torch.float64)
        kept = as_kept(key, value, each, center)
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
    centers: Tensor | None = None,
    seed: int = 0,
    progress: Progress = None,
) -> Tensor:
    """Estimate what each choice of a group costs if all other groups stay as they are.

    The cost estimates the KL divergence of the changed model's predictions from the model's own, to the second order in
    the change of the group's output: half the square of the change's product with the gradient of the log-likelihood,
    at tokens that the model draws (Fisher information). Changes at different tokens are taken as independent. One
    forward and one backward pass a sample serve all groups and all choices; a layer is computed anew when the backward
    pass reaches it, so that one layer's states exist at a time.

    Args:
        model: a causal language model of Llama's build, not converted.
        input_ids: (samples, L) without padding, as long as the inputs for which the budget counts.
        windows: latest tokens that a group may keep; each below L, else it hides nothing.
        bits: of the numbers in the cache: 16 (as they are), 8 or 4.
        predicted: the tokens whose prediction counts, (samples, L) bool; None is all but the first.
        sink_tokens: first tokens that every window keeps beside.
        centers: of the keys, taken from those of fewer bits: see `key_centers`; None takes nothing.
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
    if windows and (windows[0] < 1 or windows[-1] >= input_ids.shape[1]):
        raise ValueError(f"windows={windows} must be at least 1 and below the {input_ids.shape[1]} tokens of a sample")
    if set(bits) - set(BITS) or not bits:
        raise ValueError(f"bits={list(bits)} must be among {', '.join(map(str, BITS))}")
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
                center = None if centers is None else centers[layer].unsqueeze(1).to(seen.states[1])  # (KV heads, 1, D)
                costs[layer] += _layer_costs(seen, gradient, windows, bits, sink_tokens, center)
        if progress is not None:
            progress(index + 1, len(input_ids))
    costs[sliding] = float("nan")
    return costs / counted.sum()


def price_text_and_needles(
    model: PreTrainedModel,
    text: Tensor,
    needles: Labelled,
    windows: Sequence[int],
    bits: Sequence[int] = (FULL_BITS,),
    *,
    sink_tokens: int,
    needle_weight: float,
    centers: Tensor | None = None,
    seed: int = 0,
    progress: Progress = None,
) -> Tensor:
    """Return the costs of all choices on text, and in addition on what must be looked up in it: see `price`.

    Args:
        model: as of `price`.
        text: (samples, L), all of whose tokens count.
        needles: samples whose labels count alone. A window that is as long as they are hides nothing there.
        windows: as of `price`.
        bits: as of `price`.
        sink_tokens: as of `price`.
        needle_weight: what a looked-up token counts; a token of text counts 1.
        centers: as of `price`.
        seed: as of `price`.
        progress: called with (samples done, samples), of both kinds together.

    Returns:
        as of `price`.

    Raises:
        ValueError: as of `price`.
    """
    windows = sorted(windows)
    fitting = [window for window in windows if window < needles.input_ids.shape[1]]
    samples = len(text) + len(needles.input_ids)

    def priced(ids: Tensor, within: Sequence[int], predicted: Tensor | None, before: int) -> Tensor:
        shown = None if progress is None else lambda done, _: progress(before + done, samples)
        costs = price(
            model, ids, within, bits, predicted=predicted, sink_tokens=sink_tokens, centers=centers, seed=seed,
            progress=shown,
        )  # fmt: skip
        return costs.unflatten(-1, (len(bits), -1))  # (layers, KV heads, bits, windows + 1)

    costs = priced(text, windows, None, 0)
    looked_up = priced(needles.input_ids, fitting, needles.labels != IGNORED, len(text))
    unhidden = looked_up[..., -1:].expand(*looked_up.shape[:-1], len(windows) - len(fitting))
    looked_up = torch.cat([looked_up[..., :-1], unhidden, looked_up[..., -1:]], -1)
    return (costs + needle_weight * looked_up).flatten(-2)


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
