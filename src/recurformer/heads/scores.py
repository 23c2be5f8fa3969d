"""The scores of heads that are measured on the model; the highest is replaced first."""

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.heads.probes import Probes
from recurformer.heads.replaced import causal_attention, loss_rises
from recurformer.heads.run import Progress
from recurformer.heads.stream import AttentionBlock, watch_attention
from recurformer.model.layout import sliding_layers
from recurformer.study import HeadScores
from recurformer.tasks import IGNORED


class _Shares:
    """Mean attention weight at some distances between query and key, of the queries after the first period.

    They lead to the keys `shift` tokens after the earlier occurrences of the query's own token.
    """

    def __init__(self, samples: int, layers: int, heads: int, period: int, shift: int):
        self.shares = torch.full((samples, layers, heads), float("nan"), dtype=torch.float64)
        self.period, self.shift = period, shift

    def __call__(self, block: AttentionBlock) -> None:
        queries = torch.arange(block.start, block.stop, device=block.weights.device)[:, None]
        earlier = torch.arange(block.stop, device=queries.device) - self.shift  # before the first key there is none
        distance = queries - earlier
        repeats = (distance % self.period == 0) & (distance > 0) & (earlier >= 0) & (queries >= self.period)
        place = block.inputs.place
        sums = (block.weights * repeats).sum((-1, -2), dtype=torch.float64)
        before = self.shares[place] if block.start else 0.0
        self.shares[place] = before + sums.cpu() / (block.inputs.query.shape[2] - self.period)


def _share(model: PreTrainedModel, input_ids: Tensor, period: int, shift: int, progress: Progress) -> Tensor:
    samples, length = input_ids.shape
    if not 2 <= period < length:
        raise ValueError(f"period={period} must be at least 2 and below the {length} tokens of a sample")
    config = model.config
    shares = _Shares(samples, config.num_hidden_layers, config.num_attention_heads, period, shift)
    watch_attention(model, input_ids, shares, progress=progress)
    shares.shares[:, sliding_layers(config)] = float("nan")
    return shares.shares.mean(0)


def echo_scores(model: PreTrainedModel, input_ids: Tensor, period: int, progress: Progress = None) -> Tensor:
    """Minus the share of attention from a token to the same token's earlier occurrences: (layers, heads), float64.

    On repeated random tokens, so no text is needed: RazorAttention's echo heads (arXiv 2407.15891).

    Args:
        model: see `watch_attention`.
        input_ids: (samples, L): different tokens, repeated every `period` tokens. Queries of the first period do not
            count.
        period: tokens.
        progress: called with (samples done, samples).

    Raises:
        ValueError: a period below 2, or samples that do not repeat it.
    """
    return -_share(model, input_ids, period, 0, progress)


def induction_scores(model: PreTrainedModel, input_ids: Tensor, period: int, progress: Progress = None) -> Tensor:
    """Minus the share of attention from a token to those after its earlier occurrences; else as `echo_scores`."""
    return -_share(model, input_ids, period, 1, progress)


@torch.no_grad()
def lookup_accuracy(model: PreTrainedModel, input_ids: Tensor, labels: Tensor) -> float:
    """Share of the labels (aligned with input_ids, -100: none) that the model finds most likely."""
    labelled = labels[:, 1:] != IGNORED
    hidden = model.base_model(input_ids.to(model.device), use_cache=False).last_hidden_state[:, :-1]
    predictions = model.get_output_embeddings()(hidden[labelled.to(model.device)]).argmax(-1).cpu()
    return float((predictions == labels[:, 1:][labelled]).double().mean())


def _nothing(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    return torch.zeros_like(query).transpose(1, 2)


def retrieval_scores(
    model: PreTrainedModel,
    input_ids: Tensor,
    labels: Tensor,
    minimum_accuracy: float = 0.5,
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
    return -loss_rises(model, input_ids, labels, _nothing, progress)


def window_mask(length: int, window_tokens: int, sink_tokens: int) -> Tensor:
    """The keys that a query sees, (L, L) bool: the last `window_tokens`, including its own, and the first ones."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    near = (distance < window_tokens) | (torch.arange(length) < sink_tokens)
    return near & (distance >= 0)


def _attend_to_window(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, visible: Tensor
) -> Tensor:
    visible = visible.to(query.device)
    return causal_attention(query, key, value, visible if mask is None else mask & visible, scaling)


def sensitivity_scores(
    model: PreTrainedModel,
    input_ids: Tensor,
    labels: Tensor,
    window_tokens: int = 64,
    sink_tokens: int = 1,
    progress: Progress = None,
) -> Tensor:
    """Minus the rise of the loss when a head sees a window: (layers, heads), nats a token, float64.

    Only tokens before which the window hides something are counted; the others' loss cannot change.

    Args:
        model: see `loss_rises`.
        input_ids: (samples, L) without padding.
        labels: (samples, L), -100 where no token is predicted.
        window_tokens: latest tokens that the head sees, the query's own among them.
        sink_tokens: first tokens that it always sees.
        progress: called with (layers done, layers).

    Raises:
        ValueError: the window hides nothing.
    """
    length, visible_tokens = input_ids.shape[1], window_tokens + sink_tokens
    if visible_tokens + 1 >= length:
        raise ValueError(
            f"sensitivity: window_tokens={window_tokens} and sink_tokens={sink_tokens} hide nothing of {length} tokens"
        )
    windowed = partial(_attend_to_window, visible=window_mask(length, window_tokens, sink_tokens))
    hidden_labels = labels.clone()
    hidden_labels[:, : visible_tokens + 1] = IGNORED
    return -loss_rises(model, input_ids, hidden_labels, windowed, progress)


def _retrieval(model: PreTrainedModel, probes: Probes, settings: HeadScores, progress: Progress) -> Tensor:
    return retrieval_scores(model, *probes.lookups(), settings.minimum_accuracy, progress)


def _echo(model: PreTrainedModel, probes: Probes, settings: HeadScores, progress: Progress) -> Tensor:
    return echo_scores(model, *probes.repeats(), progress)


def _induction(model: PreTrainedModel, probes: Probes, settings: HeadScores, progress: Progress) -> Tensor:
    return induction_scores(model, *probes.repeats(), progress)


def _sensitivity(model: PreTrainedModel, probes: Probes, settings: HeadScores, progress: Progress) -> Tensor:
    return sensitivity_scores(model, *probes.language(), settings.window_tokens, settings.sink_tokens, progress)


SCORES: dict[str, Callable[[PreTrainedModel, Probes, HeadScores, Progress], Tensor]] = {
    "retrieval": _retrieval,
    "echo": _echo,
    "induction": _induction,
    "sensitivity": _sensitivity,
}
