"""Likelihood of the text after a long prompt, from the cache that the prompt left.

A model's perplexity on whole windows does not show the loss by a smaller cache: no eviction happens before the window
ends. Here the prompt is read first, then the text after it is scored, token by token where the cache may shrink on the
way, at once where it cannot.
"""

from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel

from recurformer.evaluate.generate import NewCache
from recurformer.measure.cache import held_bytes, held_ratio

BIN = 32
COLUMNS = ["window", "position", "tokens", "negative_log_likelihood"]


def continuation_rows(
    model: PreTrainedModel,
    original: PreTrainedConfig,
    input_ids: Tensor,
    *,
    prompt: int,
    batch_size: int = 8,
    new_cache: NewCache | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Negative log-likelihood of the text after each prompt, in bins of 32 positions.

    Args:
        model: a causal language model, in evaluation mode.
        original: of the model before anything was changed.
        input_ids: (windows, prompt and text), with the tokens that begin a text, if any.
        prompt: tokens of a window that are read; all others are predicted once.
        batch_size: windows read together; changes speed and memory, not the result.
        new_cache: makes the cache of each batch, and the text is scored token by token; None: a full cache.
        progress: called with (windows done, windows).

    Returns:
        One row a bin: window, position (of its first token after the prompt, from 0), tokens,
        negative_log_likelihood (their sum, nats), ratio (see `held_ratio`; after the prompt).

    Raises:
        ValueError: no prompt, or no text after it.
    """
    windows, length = input_ids.shape
    if not 1 <= prompt < length:
        raise ValueError(f"prompt: {prompt} of {length} tokens; at least one must be read and one predicted")
    rows: list[tuple[int, int, int, float]] = []
    bytes_per_token: list[float] = []
    for start in range(0, windows, batch_size):
        batch = input_ids[start : start + batch_size].to(model.device)
        losses, batch_bytes = _losses(model, batch, prompt, new_cache)
        bytes_per_token.append(batch_bytes)
        for window, row in enumerate(losses.cpu(), start=start):
            rows += [(window, BIN * number, len(part), part.sum().item()) for number, part in enumerate(row.split(BIN))]
        if progress is not None:
            progress(start + len(batch), windows)
    return pd.DataFrame(rows, columns=COLUMNS).assign(ratio=held_ratio(bytes_per_token, original, model.dtype))


@torch.no_grad()
def _losses(model: PreTrainedModel, input_ids: Tensor, prompt: int, new_cache: NewCache | None) -> tuple[Tensor, float]:
    """Negative log-likelihoods (B, text) in float64, and the bytes held after the prompt for each of its tokens."""
    cache = DynamicCache(config=model.config) if new_cache is None else new_cache()
    text = input_ids[:, prompt:]
    output = model(input_ids=input_ids[:, :prompt], past_key_values=cache, use_cache=True, logits_to_keep=1)
    bytes_per_token = held_bytes(cache, input_ids[:, :prompt].numel())
    losses = [_loss(output.logits, text[:, :1])]
    step = 1 if new_cache is not None else text.shape[1]
    for start in range(0, text.shape[1] - 1, step):
        shown, targets = text[:, start : min(start + step, text.shape[1] - 1)], text[:, start + 1 : start + step + 1]
        losses.append(_loss(model(input_ids=shown, past_key_values=cache, use_cache=True).logits, targets))
    return torch.cat(losses, dim=1), bytes_per_token


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood, (B, L), of targets (B, L) under logits (B, L, V)."""
    return F.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none").double()
