"""Scores of heads that are measured on the model; the highest is replaced first."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from recurformer.data import IGNORED
from recurformer.data.datasets import samples_per_batch
from recurformer.heads.attention import (
    Arguments,
    Attend,
    AttentionBlock,
    Progress,
    attending,
    causal_attention,
    check_batch,
    logits_of,
    reading,
    retained_heads,
    watch_attention,
)
from recurformer.heads.price import price
from recurformer.heads.probes import Probes, Reread
from recurformer.model.layout import sliding_layers
from recurformer.study import HeadScores

Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
"""Attends with a layer's query, key, value, mask and scaling, as `Attend` gets them; returns (B, L, H, head_dim)."""


@dataclass
class _OneReplaced:
    """Attends to copies of the samples (copy 1, copy 2, …); an `Attend`.

    Attributes:
        replacement: gives the replaced heads' output.
        layer: the layer where heads are replaced.
        heads: for each copy the position of its replaced head.
        samples: of one copy.
        attended: whether any layer has called.
    """

    replacement: Attention
    layer: int
    heads: range
    samples: int
    attended: bool = False

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
    ) -> Tensor:
        self.attended = True
        mask = mask if mask is None else mask[:1]  # without padding all samples have the same
        if layer != self.layer:
            return causal_attention(query, key, value, mask, scaling)
        query, key, value = (states[: self.samples] for states in (query, key, value))  # no copy differs until here
        output = causal_attention(query, key, value, mask, scaling).repeat(len(self.heads), 1, 1, 1)
        replaced = self.replacement(query, key, value, mask, scaling)
        for copy, head in zip(output.split(self.samples), self.heads, strict=True):
            copy[:, :, head] = replaced[:, :, head]
        return output


def _run_from(base: Any, layer: int, calls: list[Arguments], attend: _OneReplaced) -> Tensor:
    """Last hidden states, (copies * B, L, hidden), if the layers from `layer` on read copies of the samples."""
    hidden = calls[layer][0][0].repeat(len(attend.heads), 1, 1)
    for above, (_, arguments) in zip(base.layers[layer:], calls[layer:], strict=True):
        hidden = above(hidden, **{**arguments, "attend": attend})
    return base.norm(hidden)


def _loss(model: PreTrainedModel, hidden: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood of the labels, in nats, from the hidden states after the last layer's norm."""
    predicted = labels[:, 1:] != IGNORED
    logits = logits_of(model, hidden[:, :-1][predicted])
    wide = torch.promote_types(logits.dtype, torch.float32)
    return float(F.cross_entropy(logits.to(wide), labels[:, 1:][predicted], reduction="none").double().mean())


@torch.no_grad()
def loss_rises(
    model: PreTrainedModel, input_ids: Tensor, labels: Tensor, replacement: Attention, progress: Progress = None
) -> Tensor:
    """Rise of the loss when one head's output is replaced, for every head by itself.

    The layers below the head do not change, so they are run once. From its layer on, the model runs over copies of the
    samples side by side, in each of which another head is replaced.

    Args:
        model: a causal language model of Llama's build: decoder layers, a norm, a language-model head.
        input_ids: (samples, L) without padding.
        labels: (samples, L), aligned with input_ids, -100 where no token is predicted.
        replacement: attends in the place of the replaced head; called once for a layer and batch of heads.
        progress: called with (layers done, layers).

    Returns:
        (layers, heads) float64: rise of the labels' mean negative log-likelihood, in nats; NaN where no head attends,
        and in layers with a sliding window between others without one.

    Raises:
        ValueError: empty input, labels without any prediction, or a model that does not use the attention interface.
    """
    check_batch(input_ids)
    if not (labels[:, 1:] != IGNORED).any():
        raise ValueError("labels ask nothing: there is no loss that could rise")
    input_ids, labels = input_ids.to(model.device), labels.to(model.device)
    base: Any = attending(model).base_model
    rises = torch.full((len(base.layers), model.config.num_attention_heads), float("nan"), dtype=torch.float64)
    at_once = samples_per_batch(model.device.type, input_ids.numel())
    with reading(base.layers) as calls:
        unchanged = _OneReplaced(replacement, -1, range(0), len(input_ids))
        loss = _loss(model, base(input_ids, use_cache=False, attend=unchanged).last_hidden_state, labels)
    if not unchanged.attended:
        raise ValueError(f"{type(model).__name__} does not attend through transformers' attention interface")
    for layer in range(len(base.layers)):
        heads = [] if layer in sliding_layers(model.config) else retained_heads(model.config, layer)
        for start in range(0, len(heads), at_once):
            chosen = range(start, min(start + at_once, len(heads)))
            attend = _OneReplaced(replacement, layer, chosen, len(input_ids))
            copies = _run_from(base, layer, calls, attend).split(len(input_ids))
            for position, copy in zip(chosen, copies, strict=True):
                rises[layer, heads[position]] = _loss(model, copy, labels) - loss
        if progress is not None:
            progress(layer + 1, len(base.layers))
    return rises


def look_back_scores(
    model: PreTrainedModel, input_ids: Tensor, period: int, ahead: int, progress: Progress = None
) -> Tensor:
    """Minus the share of attention from a token to the same token's earlier occurrences, or to those after them:
    (layers, heads), float64.

    On repeated random tokens, so no text is needed: RazorAttention's echo and induction heads (arXiv 2407.15891).

    Args:
        model: see `watch_attention`.
        input_ids: (samples, L): different tokens, repeated every `period` tokens. Queries of the first period do not
            count.
        period: tokens.
        ahead: tokens between an earlier occurrence and the key: 0 for echo heads, 1 for induction heads.
        progress: called with (samples done, samples).

    Raises:
        ValueError: a period below 2, or samples that do not repeat it.
    """
    (samples, length), config = input_ids.shape, model.config
    if not 2 <= period < length:
        raise ValueError(f"period={period} must be at least 2 and below the {length} tokens of a sample")
    size = samples, config.num_hidden_layers, config.num_attention_heads
    shares = torch.full(size, float("nan"), dtype=torch.float64)

    def observe(block: AttentionBlock) -> None:
        queries = torch.arange(block.start, block.stop, device=block.weights.device)[:, None]
        earlier = torch.arange(block.stop, device=queries.device) - ahead  # before the first key there is none
        distance = queries - earlier
        repeats = (distance % period == 0) & (distance > 0) & (earlier >= 0) & (queries >= period)
        place = block.inputs.place
        sums = (block.weights * repeats).sum((-1, -2), dtype=torch.float64)
        before = shares[place] if block.start else 0.0
        shares[place] = before + sums.cpu() / (length - period)

    watch_attention(model, input_ids, observe, progress=progress)
    shares[:, sliding_layers(config)] = float("nan")
    return -shares.mean(0)


@torch.no_grad()
def lookup_accuracy(model: PreTrainedModel, input_ids: Tensor, labels: Tensor) -> float:
    """Share of the labels (aligned with input_ids, -100: none) that the model finds most likely."""
    labelled = labels[:, 1:] != IGNORED
    hidden = model.base_model(input_ids.to(model.device), use_cache=False).last_hidden_state[:, :-1]
    predictions = model.get_output_embeddings()(hidden[labelled.to(model.device)]).argmax(-1).cpu()
    return float((predictions == labels[:, 1:][labelled]).double().mean())


def retrieval_scores(
    model: PreTrainedModel,
    input_ids: Tensor,
    labels: Tensor,
    minimum_accuracy: float,
    progress: Progress = None,
) -> Tensor:
    """Minus the rise of the looked-up values' loss when a head's output is zero: (layers, heads), nats, float64.

    So Retrieval-Aware Distillation (arXiv 2602.11374) chooses the heads that it keeps.

    Args:
        model: see `loss_rises`.
        input_ids: prompts with the values to look up, (samples, L) without padding.
        labels: (samples, L), the values to look up at their places, -100 elsewhere.
        minimum_accuracy: share of the values that the model must find as it is.
        progress: called with (layers done, layers).

    Raises:
        ValueError: the model knows too few of the values for an ablation to be informative.
    """
    accuracy = lookup_accuracy(model, input_ids, labels)
    if accuracy < minimum_accuracy:
        raise ValueError(
            f"retrieval: with all its heads the model looks up {accuracy:.0%} of the values, below "
            f"minimum_accuracy={minimum_accuracy}: list fewer pairs, or lower it"
        )
    print(f"retrieval: with all its heads the model looks up {accuracy:.0%} of the values", file=sys.stderr, flush=True)
    return -loss_rises(model, input_ids, labels, lambda query, *_: torch.zeros_like(query).transpose(1, 2), progress)


def window_mask(length: int, window_tokens: int, sink_tokens: int) -> Tensor:
    """The keys that a query sees, (L, L) bool: the last `window_tokens`, including its own, and the first ones."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    near = (distance < window_tokens) | (torch.arange(length) < sink_tokens)
    return near & (distance >= 0)


def _of_groups(model: PreTrainedModel, scores: Tensor) -> Tensor:
    """Scores (layers, KV heads) on every head of the group, (layers, heads), float64."""
    scores = scores.double().index_fill(0, torch.tensor(sliding_layers(model.config), dtype=torch.long), float("nan"))
    return scores.repeat_interleave(model.config.num_attention_heads // scores.shape[1], 1)


def reread_scores(model: PreTrainedModel, texts: Reread, sink_tokens: int, progress: Progress = None) -> Tensor:
    """Minus the most attention that a token of a text gets while the model reads it again: (layers, heads), float64.

    So KVzip scores the heads of a group together (arXiv 2505.23416, section 3): the maximum over texts, their tokens,
    the queries of the second reading, and the group's heads. NaN where no head attends.

    Args:
        model: see `watch_attention`.
        texts: without padding.
        sink_tokens: first tokens of the texts whose attention does not count.
        progress: called with (samples done, samples).
    """
    config = model.config
    size = len(texts.input_ids), config.num_hidden_layers, config.num_attention_heads
    most = torch.full(size, float("nan"))

    def observe(block: AttentionBlock) -> None:
        weights = block.weights[:, :, max(texts.again - block.start, 0) :, sink_tokens : texts.tokens]  # (B, H, Q, K)
        if weights.numel():
            place = block.inputs.place
            most[place] = torch.fmax(most[place], weights.amax((-1, -2)).float().cpu())

    watch_attention(model, texts.input_ids, observe, progress=progress)
    return _of_groups(model, -most.amax(0).unflatten(1, (config.num_key_value_heads, -1)).amax(-1))


GATE_RATE = 0.02
GATE_PENALTY = 0.05
"""DuoAttention's learning rate, and the weight of its penalty for open gates (arXiv 2410.10819, section 2.2)."""


def gate_scores(
    model: PreTrainedModel,
    input_ids: Tensor,
    labels: Tensor,
    window_tokens: int,
    sink_tokens: int,
    steps: int,
    progress: Progress = None,
) -> Tensor:
    """Minus how far the gate of each group has to stay open: (layers, heads), float64.

    So DuoAttention scores the heads of a group together (arXiv 2410.10819, section 2.2). A gate mixes attention to all
    tokens with attention to a window. The gates alone learn, one sample a step, to keep the last hidden states from
    which the labels are predicted; their mean is a penalty.

    Args:
        model: see `loss_rises`.
        input_ids: (samples, L) without padding.
        labels: (samples, L), aligned with input_ids, -100 where no token is predicted.
        window_tokens: latest tokens that a head sees when its gate is shut, the query's own among them.
        sink_tokens: first tokens that it always sees.
        steps: of AdamW; DuoAttention takes 2,000.
        progress: called with (steps done, steps).

    Raises:
        ValueError: a sample without any label, a window that hides nothing, or heads that were replaced before.
    """
    check_batch(input_ids)
    if not (labels[:, 1:] != IGNORED).any(1).all():
        raise ValueError("gates: labels ask nothing of some sample; every step needs one")
    config, base = model.config, attending(model).base_model
    if any(
        len(retained_heads(config, layer)) < config.num_attention_heads for layer in range(config.num_hidden_layers)
    ):
        raise ValueError("gates: some heads of the model are replaced; score its heads before that")
    length = input_ids.shape[1]
    if window_tokens + sink_tokens + 1 >= length:
        raise ValueError(f"window_tokens={window_tokens} and sink_tokens={sink_tokens} hide nothing of {length} tokens")
    near = window_mask(length, window_tokens, sink_tokens).to(model.device)
    gates = torch.ones(config.num_hidden_layers, config.num_key_value_heads, device=model.device, requires_grad=True)
    optimiser = torch.optim.AdamW([gates], lr=GATE_RATE, weight_decay=0.0)

    def whole(layer: int, *states: Any) -> Tensor:
        return causal_attention(*states)

    def gated(layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
        gate = gates[layer].to(query.dtype).repeat_interleave(query.shape[1] // key.shape[1])[:, None]  # (H, 1)
        visible = near if mask is None else mask & near
        every, last = (causal_attention(query, key, value, seen, scaling) for seen in (mask, visible))
        return gate * every + (1 - gate) * last  # (B, L, H, head_dim)

    for step in range(steps):
        row = [step % len(input_ids)]
        asked = labels[row, 1:] != IGNORED  # (1, L - 1)

        def states(attend: Attend, row: list[int] = row, asked: Tensor = asked) -> Tensor:
            hidden = base(input_ids[row].to(model.device), use_cache=False, attend=attend).last_hidden_state
            return hidden[:, :-1][asked.to(model.device)].float()

        with torch.no_grad():
            goal = states(whole)
        loss = (states(gated) - goal).square().mean() + GATE_PENALTY * gates.mean()
        (gates.grad,) = torch.autograd.grad(loss, gates)
        optimiser.step()
        with torch.no_grad():
            gates.clamp_(0, 1)
        if progress is not None:
            progress(step + 1, steps)
    return _of_groups(model, -gates.detach().cpu())


def _price(model: PreTrainedModel, probes: Probes, settings: HeadScores, progress: Progress) -> Tensor:
    """Minus the cost of the window for each group, on every head of the group: nats, weighted."""
    input_ids, weights = probes.weighted()
    costs = price(
        model, input_ids, [settings.window_tokens], weights=weights, sink_tokens=settings.sink_tokens, progress=progress
    )[..., 0]  # (layers, KV heads)
    return _of_groups(model, -costs)


SCORES: dict[str, Callable[[PreTrainedModel, Probes, HeadScores, Progress], Tensor]] = {
    "retrieval": lambda model, probes, settings, progress: retrieval_scores(
        model, *probes.lookups(), settings.minimum_accuracy, progress
    ),
    "echo": lambda model, probes, _, progress: look_back_scores(model, *probes.repeats(), 0, progress),
    "induction": lambda model, probes, _, progress: look_back_scores(model, *probes.repeats(), 1, progress),
    "price": _price,
    "kvzip": lambda model, probes, settings, progress: reread_scores(
        model, probes.reread(), settings.sink_tokens, progress
    ),
    "gates": lambda model, probes, settings, progress: gate_scores(
        model, *probes.hidden(), settings.window_tokens, settings.sink_tokens, settings.gate_steps, progress
    ),
}
