"""Which tokens of an input are padding, for the Mamba blocks; the attention's masks are the library's."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import create_masks_for_generate
from transformers.utils.import_utils import is_tracing


def recurrent_mask(attention_mask: Tensor | None, length: int) -> Tensor | None:
    """Return the mask (B, length) of the newest tokens, or None when none of them is padding.

    Unlike the library's function it looks at a single token too: a prompt may be read in pieces of one, and a row may
    have ended before the others. Traced code cannot look and masks every token. What records a CUDA graph or has no
    values takes a single token for a real one.

    Args:
        attention_mask: (B, tokens so far), 0 at padding, or None.
        length: tokens of this input.
    """
    if attention_mask is None:
        return None
    newest = attention_mask[:, -length:]
    if is_tracing(attention_mask) or attention_mask.is_meta:
        recording = attention_mask.is_meta or (attention_mask.is_cuda and torch.cuda.is_current_stream_capturing())
        return None if recording and length == 1 else newest
    return None if newest.all() else newest


def masks_for_generation(
    attention_mask: Tensor | None, inputs_embeds: Tensor, **arguments: Any
) -> Tensor | Mapping[str, Tensor | None] | None:
    """Return what generate() hands to a model with a static cache: the library's masks, ours for the Mamba blocks."""
    masks = create_masks_for_generate(attention_mask=attention_mask, inputs_embeds=inputs_embeds, **arguments)
    if isinstance(masks, Mapping) and "linear_attention" in masks:
        masks = {**masks, "linear_attention": recurrent_mask(attention_mask, inputs_embeds.shape[1])}
    return masks
