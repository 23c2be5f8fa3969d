"""The padding mask of the mixers and the places of their tokens; the attention's masks are the library's."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.masking_utils import (
    create_causal_mask,
    create_masks_for_generate,
    create_sliding_window_causal_mask,
)
from transformers.utils.import_utils import is_tracing

from .caches import check_mask
from .layout import SLIDING

PLACES = "recurrent_places"
"""Where `masks_for_generation` puts `real_places` among the masks by kind of layer."""


def _newest(columns: Tensor, length: int, cache: Cache | None) -> Tensor:
    """Return the columns (B, length) of the tokens after the cached ones."""
    seen = 0 if cache is None else cache.get_seq_length()  # a static cache counts in a tensor, which traced code reads
    return columns.index_select(1, torch.arange(length, device=columns.device) + seen)


def recurrent_mask(attention_mask: Tensor | None, length: int, cache: Cache | None = None) -> Tensor | None:
    """Return the mask (B, length) of the newest tokens, or None when none of them is padding.

    Unlike the library's function it looks at a single token too: a prompt may be read in pieces of one, and a row may
    have ended before the others. Traced code cannot look and masks every token. While a CUDA graph is recorded, and on
    the meta device, a single token counts as real.

    Args:
        attention_mask: (B, tokens so far), 0 at padding, or None; more columns are of later tokens.
        length: tokens of this input.
        cache: holds the tokens before it.

    Raises:
        ValueError: a mask of another form, with fewer columns, or one that does not fit the cache; see `check_mask`.
    """
    if attention_mask is None:
        check_mask(None, cache)
        return None
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2:
        form = tuple(attention_mask.shape) if isinstance(attention_mask, Tensor) else type(attention_mask).__name__
        raise ValueError(
            f"attention_mask has the form {form}: mixers need the padding mask (batch, tokens so far), from which the"
            " model makes the masks of all layers"
        )
    if attention_mask.is_meta or is_tracing(attention_mask):
        check_mask(attention_mask, cache)
        recording = attention_mask.is_meta or (attention_mask.is_cuda and torch.cuda.is_current_stream_capturing())
        return None if recording and length == 1 else _newest(attention_mask, length, cache)
    tokens = length + (0 if cache is None else int(cache.get_seq_length()))
    if attention_mask.shape[1] < tokens:
        raise ValueError(
            f"attention_mask has {attention_mask.shape[1]} columns for {tokens} tokens: it needs one for every token so"
            " far, the cached ones among them"
        )
    check_mask(attention_mask, cache)
    newest = attention_mask[:, tokens - length : tokens]
    return None if newest.all() else newest


def real_places(attention_mask: Tensor | None, length: int, cache: Cache | None, device: torch.device | str) -> Tensor:
    """Return how many real tokens of its row stand before each of the newest tokens, (B or 1, length).

    The other arguments are those of `recurrent_mask`.
    """
    if attention_mask is None:
        seen = 0 if cache is None else cache.get_seq_length()
        return (torch.arange(length, device=device) + seen).unsqueeze(0)
    return _newest((attention_mask.bool().cumsum(1) - 1).clamp(min=0), length, cache)


def masks_by_kind(config: Any, inputs_embeds: Tensor, **arguments: Any) -> dict[str, Any]:
    """Return the library's masks for the layers that attend, by their kind; arguments as of its mask functions."""
    kinds = {"full_attention": create_causal_mask, SLIDING: create_sliding_window_causal_mask}
    used = ("full_attention", SLIDING) if SLIDING in config.layer_types else ("full_attention",)
    return {kind: kinds[kind](config=config, inputs_embeds=inputs_embeds, **arguments) for kind in used}


def masks_for_generation(
    attention_mask: Tensor | None, inputs_embeds: Tensor, **arguments: Any
) -> Tensor | Mapping[str, Tensor | None] | None:
    """Return the masks that generate() hands to a model with a static cache: the library's, and ours for the mixers."""
    masks = create_masks_for_generate(attention_mask=attention_mask, inputs_embeds=inputs_embeds, **arguments)
    cache = arguments.get("past_key_values")
    if isinstance(masks, Mapping) and "linear_attention" in masks:
        given = attention_mask, inputs_embeds.shape[1], cache
        masks = {**masks, "linear_attention": recurrent_mask(*given), PLACES: real_places(*given, inputs_embeds.device)}
    return masks
