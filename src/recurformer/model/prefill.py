"""Read a prompt in chunks, in memory that grows by the cache alone.

A chunk attends to itself under the causal rule and to all tokens before it without one, so that no mask of the size
chunk x tokens is made; the two results are joined by their softmax denominators. Keys and values are written to their
final place, which is reserved at the beginning: nothing is copied when the cache grows. Mixers carry their own states.
Layers with a sliding window keep no more than that, and read it under a mask of chunk x (window + chunk).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .attending import attending_by, refuse
from .flash import flash_attention

IMPLEMENTATION = "recurformer_chunked"


def _before(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Attend to all tokens before the chunk; heads that share keys become one longer query, so none is repeated."""
    grouped = query.reshape(len(query), key.shape[1], -1, query.shape[-1])
    output, logsumexp = flash_attention(grouped, key, value, scaling, causal=False)
    return output.reshape(query.shape), logsumexp.reshape(query.shape[:-1])


def _sliding(query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int) -> Tensor:
    """Attend to the last `window` tokens, of which the cache holds those before the chunk; (B, L, H, head_dim)."""
    places = torch.arange(key.shape[2], device=key.device)
    distance = places[key.shape[2] - query.shape[2] :, None] - places
    visible = (distance >= 0) & (distance < window)
    output = F.scaled_dot_product_attention(query, key, value, visible, scale=scaling, enable_gqa=True)
    return output.transpose(1, 2).contiguous()


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    window = kwargs.pop("sliding_window", None)
    refuse(module, kwargs, "which no prefill in chunks knows")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    seen = key.shape[2] - query.shape[2]
    if window is not None:
        return _sliding(query, key, value, scaling, window), None
    output, logsumexp = flash_attention(query, key[:, :, seen:], value[:, :, seen:], scaling, causal=True)
    if seen:
        before, logsumexp_before = _before(query, key[:, :, :seen], value[:, :, :seen], scaling)
        share = torch.sigmoid(logsumexp_before - logsumexp).unsqueeze(-1)  # of the softmax's mass, before the chunk
        output = torch.lerp(output.to(share.dtype), before.to(share.dtype), share).to(query.dtype)
    return output.transpose(1, 2).contiguous(), None


def _no_mask(*arguments: Any, **kwargs: Any) -> None:
    """Chunks obey the causal rule alone; this attention reads no padded prompts."""


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)


class ReservedCache(DynamicCache):
    """A `DynamicCache` with room for so many tokens, which it fills without copying; after them it grows as usual.

    Args:
        config: of the model.
        tokens: for which there is room.
    """

    def __init__(self, config: PreTrainedConfig, tokens: int):
        super().__init__(config=config)
        self._tokens = tokens
        self._rooms: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take in a layer's new keys and values (B, heads, L, D); return all there are."""
        layer: Any = self.layers[layer_idx]
        seen = layer.get_seq_length()
        stop = seen + key_states.shape[2]
        if stop > self._tokens or layer.is_sliding:
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if layer_idx not in self._rooms:
            layer.lazy_initialization(key_states, value_states)
            self._rooms[layer_idx] = self._room(key_states), self._room(value_states)
        keys, values = self._rooms[layer_idx]
        keys[:, :, seen:stop], values[:, :, seen:stop] = key_states, value_states
        layer.keys, layer.values = keys[:, :, :stop], values[:, :, :stop]
        return layer.keys, layer.values

    def _room(self, states: Tensor) -> Tensor:
        return states.new_empty(*states.shape[:2], self._tokens, states.shape[3])

    def skip(self, tokens: int) -> None:
        """Count `tokens` more as read: the next ones attend to whatever lies in the reserved memory.

        Only for measurements of memory, which depends on no value; after the first chunk, and within the room.
        """
        for index, (keys, values) in self._rooms.items():
            layer: Any = self.layers[index]
            stop = layer.get_seq_length() + tokens
            layer.keys, layer.values = keys[:, :, :stop], values[:, :, :stop]
        for layer in self.layers:
            if getattr(layer, "is_sliding", False):
                layer.cumulative_length += tokens
                missing = min(layer.cumulative_length, layer.sliding_window - 1) - layer.keys.shape[2]
                layer.keys, layer.values = (F.pad(states, (0, 0, missing, 0)) for states in (layer.keys, layer.values))

    def close(self) -> None:
        """Reserve nothing any more: from now on the layers may be cropped, reordered and appended to as any others."""
        self._tokens = 0
        self._rooms.clear()


def read_chunk(
    model: PreTrainedModel,
    input_ids: Tensor,
    cache: DynamicCache,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
) -> CausalLMOutputWithPast:
    """One forward pass over the next tokens (B, L), with the logits of the last one only."""
    return model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )


@torch.no_grad()
def prefill(
    model: PreTrainedModel, input_ids: Tensor, chunk: int = 1024, attention_mask: Tensor | None = None
) -> CausalLMOutputWithPast:
    """Read a prompt in chunks; the result is that of one forward pass up to rounding.

    Without padding, memory beyond the cache does not depend on the prompt's length. With padding the model's own
    attention reads the chunks, under masks of chunk x tokens, and only real tokens count for positions.

    Args:
        model: a causal language model, converted or not.
        input_ids: tokens (B, L), on any device.
        chunk: tokens of a chunk, at least 1.
        attention_mask: 0 at padding, (B, L), or None.

    Returns:
        The logits (B, 1, vocabulary) of the last token, and the cache in `past_key_values`, ready to continue.

    Raises:
        ValueError: no token, a chunk below 1, a model that attends in a way that cannot be read in chunks, or heads
            that no fused kernel of the device takes.
    """
    if chunk < 1 or not input_ids.shape[1]:
        raise ValueError(
            f"a prefill needs at least one token and a chunk of at least 1, got {input_ids.shape[1]}, {chunk}"
        )
    position_ids = None
    if attention_mask is not None:
        attention_mask = None if attention_mask.all() else attention_mask.to(model.device)
    if attention_mask is not None:
        position_ids = (attention_mask.cumsum(1) - 1).clamp(min=0)  # as generate() counts
    cache = ReservedCache(model.config, input_ids.shape[1])
    reader, seen = attending_by(model, IMPLEMENTATION) if attention_mask is None else model, 0
    for part in input_ids.split(chunk, dim=1):
        seen += part.shape[1]
        mask = None if attention_mask is None else attention_mask[:, :seen]
        places = None if position_ids is None else position_ids[:, seen - part.shape[1] : seen]
        output = read_chunk(reader, part.to(model.device), cache, mask, places)
    cache.close()
    return output
