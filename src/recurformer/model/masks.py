"""The padding mask of the Mamba blocks; the attention's masks are the library's."""

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
        ValueError: the mask does not fit the cache; see `check_mask`.
    """
    check_mask(attention_mask, length, cache)
    if attention_mask is None:
        return None
    newest = attention_mask[:, -length:]
    if is_tracing(attention_mask) or attention_mask.is_meta:
        recording = attention_mask.is_meta or (attention_mask.is_cuda and torch.cuda.is_current_stream_capturing())
        return None if recording and length == 1 else newest
    seen = 0 if cache is None else int(cache.get_seq_length())
    if attention_mask.shape[1] > seen + length:
        newest = attention_mask[:, seen : seen + length]
    return None if newest.all() else newest


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
        masks = {**masks, "linear_attention": recurrent_mask(attention_mask, inputs_embeds.shape[1], cache)}
    return masks
