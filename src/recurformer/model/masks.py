"""Padding must enter no state: the mixers' masks and places, packing of real tokens, and rows that have ended.

The attention's own masks are the library's.
"""

from collections.abc import Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, GenerationConfig, GenerationMixin, StoppingCriteriaList
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
    attention_mask = attention_mask != 0  # as the library reads it, whatever its type; mixers multiply by it
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


class Packing:
    """Moves the real tokens of every row to its beginning, in order, for mixers that read neighbours; padding follows.

    Padding after the real tokens enters none of their windows. The tokens before a row stay next to its first real one.

    Args:
        padding_mask: (B, L), 0 at padding.

    Attributes:
        real: (B, L), whether a place holds a real token after packing.
    """

    def __init__(self, padding_mask: Tensor):
        real = padding_mask.bool()
        self.counts = real.sum(1, keepdim=True)
        places = torch.where(real, real.cumsum(1), self.counts + (~real).cumsum(1)) - 1  # after packing, by token
        self.places = places.unsqueeze(-1)
        self.real = torch.arange(real.shape[1], device=real.device) < self.counts

    def pack(self, rows: Tensor) -> Tensor:
        """Return rows (B, L, features) with the real tokens first."""
        return torch.empty_like(rows).scatter(1, self.places.expand_as(rows), rows)

    def unpack(self, rows: Tensor) -> Tensor:
        """Return packed rows (B, L, features) in their first order."""
        return rows.gather(1, self.places.expand_as(rows))

    def newest(self, rows: Tensor, before: Tensor | None, size: int) -> Tensor:
        """Return every row's last real tokens, channels first (B, features, size), the oldest first.

        Args:
            rows: packed, (B, L, features).
            before: the tokens before the first, (B, features, any number), or None for none.
            size: number of tokens to return; zeros stand for missing ones.
        """
        seen = rows.transpose(1, 2)
        if before is not None:
            seen = torch.cat([before[..., -size:], seen], -1)
        seen = F.pad(seen, (size - (seen.shape[-1] - rows.shape[1]), 0))  # so that `size` columns stand in front
        columns = self.counts + torch.arange(size, device=rows.device)  # (B, size)
        return seen.gather(2, columns.unsqueeze(1).expand(-1, seen.shape[1], -1))


class EndedRows(StoppingCriteriaList):
    """The stopping criteria of one call of generate(), which remember the rows (B,) that have ended."""

    rows: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        """Return the rows that end now; see the library's class."""
        ended = super().__call__(input_ids, scores, **kwargs)
        self.rows = ended if self.rows is None else self.rows | ended
        return ended

    @property
    def pads(self) -> bool:
        """Whether generate() writes padding after a row's end: it does where a token ends rows."""
        return any(hasattr(criterion, "eos_token_id") for criterion in self)


class PaddingAfterEnd:
    """The part of a language model that masks padding after the end of a row while it generates.

    generate() fills up rows that end before the others, and marks those tokens as real. That is harmless where only
    attention looks back, for a later mask hides them.
    """

    def _sample(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ):
        ended = EndedRows(stopping_criteria)
        if ended.pads and len(input_ids) > 1:
            kwargs["ended_rows"] = ended
            if kwargs.get("attention_mask") is None:  # generate() drops a mask without padding
                length = getattr(generation_config, "_mask_length", input_ids.shape[1])
                kwargs["attention_mask"] = input_ids.new_ones(len(input_ids), length)
        return super()._sample(input_ids, logits_processor, ended, generation_config, **kwargs)  # type: ignore[misc]

    @wraps(GenerationMixin.prepare_inputs_for_generation)  # generate() asks for the names of its arguments
    def prepare_inputs_for_generation(self, *args: Any, ended_rows: EndedRows | None = None, **kwargs: Any):
        """Prepare the arguments of one forward pass; see the library's method."""
        return super().prepare_inputs_for_generation(*args, **kwargs)  # type: ignore[misc]

    def _update_model_kwargs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        following = super()._update_model_kwargs_for_generation(*args, **kwargs)  # type: ignore[misc]
        ended, mask = following.get("ended_rows"), following.get("attention_mask")
        if ended is not None and ended.rows is not None and mask is not None:
            mask[:, -1].masked_fill_(ended.rows.to(mask.device), 0)  # of the token that is about to be chosen
        return following
