"""What it costs that one head sees only the latest tokens, and the first ones: gradient-free sensitivity."""

from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurformer.heads.replaced import causal_attention, loss_rises
from recurformer.heads.run import Progress
from recurformer.tasks.labels import IGNORED


def window_mask(length: int, window_tokens: int, sink_tokens: int) -> Tensor:
    """Which keys a query sees, (L, L) bool: the latest `window_tokens`, its own among them, and the first ones."""
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
        labels: (samples, L), -100 where nothing is asked.
        window_tokens: latest tokens that the head sees, the query's own among them.
        sink_tokens: first tokens that it sees besides.
        progress: called with (layers done, layers).

    Raises:
        ValueError: the window hides nothing.
    """
    length, seen = input_ids.shape[1], window_tokens + sink_tokens
    if seen + 1 >= length:
        raise ValueError(
            f"sensitivity: window_tokens={window_tokens} and sink_tokens={sink_tokens} hide nothing of {length} tokens"
        )
    windowed = partial(_attend_to_window, visible=window_mask(length, window_tokens, sink_tokens))
    asked = labels.clone()
    asked[:, : seen + 1] = IGNORED
    return -loss_rises(model, input_ids, asked, windowed, progress)
