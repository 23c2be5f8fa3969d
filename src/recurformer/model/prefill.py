"""Read a prompt in chunks, in memory that grows by the cache alone.

A chunk attends to itself under the causal rule and to all tokens before it without one, so that no mask of the size
chunk x tokens is made; the two results are joined by their softmax denominators. torch's fused kernels compute these,
but torch's public function drops them: `flash_attention` calls the kernels by their names. Keys and values are written
to their final place, which is reserved at the beginning: nothing is copied when the cache grows. Mixers carry their own
states. Layers with a sliding window keep no more than that, and read it under a mask of chunk x (window + chunk).
"""

from collections.abc import Mapping
from copy import copy, deepcopy
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention
from torch.nn import Module
from torch.nn import functional as F
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    Cache,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

IMPLEMENTATION = "recurformer_chunked"
UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments of an attention function that change the weights in ways no function here knows."""


def check_arguments(module: Module, arguments: Mapping[str, Any], reason: str, *more: str) -> None:
    """Check the arguments that transformers hands to an attention function.

    Raises:
        ValueError: one of `UNSUPPORTED` or `more` is given; `reason` ends the sentence.
    """
    strange = [name for name in (*UNSUPPORTED, *more) if arguments.get(name) is not None]
    if strange:
        raise ValueError(f"{type(module).__name__} attends with {strange[0]}, {reason}")


def attending_by(model: PreTrainedModel, implementation: str) -> PreTrainedModel:
    """Return the model as it attends by the function of this name; the given one and its other callers stay as it is.

    Modules and configs are copies; weights and buffers are shared, and so are the hooks of this moment.

    Raises:
        ValueError: the model does not attend through transformers' attention interface.
    """
    copies: dict[int, Any] = {id(module): copy(module) for module in model.modules()}
    for module in list(copies.values()):
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers"):  # shared, so that code that watches a weight sees it change
                continue
            if name == "steps" and value is not None:  # prepared for the modules of one model: a copy makes its own
                vars(module)[name] = type(value)()
            elif isinstance(value, dict):  # of submodules or hooks
                vars(module)[name] = type(value)((key, copies.get(id(item), item)) for key, item in value.items())
            elif isinstance(value, (PreTrainedConfig, MethodType, partial)):  # methods that someone has wrapped, too
                vars(module)[name] = deepcopy(value, copies)
    twin = copies[id(model)]
    twin.set_attn_implementation(implementation)
    if twin.config._attn_implementation != implementation:
        raise ValueError(f"{type(model).__name__} does not attend through transformers' attention interface")
    return twin


def _fits_flash(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> bool:
    return can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, causal, True))


def refuses(query: Tensor, key: Tensor, value: Tensor, causal: bool = True) -> str | None:
    """Return why no fused kernel of this device takes such tensors, or None; arguments as of `flash_attention`."""
    device = query.device.type
    if device in ("cpu", "meta"):
        return None
    if device == "cuda" and query.shape[-1] % 8 == 0:  # torch's public function pads other heads
        if _fits_flash(query, key, value, causal):
            return None
        # it takes one key-value head for each query head; here only the form of the tensors counts
        key, value = (x[:, :1].expand(-1, query.shape[1], -1, -1) for x in (key, value))
        if can_use_efficient_attention(SDPAParams(query, key, value, None, 0.0, causal, False)):
            return None
    return f"no fused attention for {query.dtype} heads of {query.shape[-1]} numbers on {query.device}"


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool = True
) -> tuple[Tensor, Tensor]:
    """Attention without a mask, in one pass.

    Args:
        query: (B, H, L, D).
        key: (B, key-value heads, keys, D); as many keys as queries where it is causal.
        value: likewise.
        scaling: factor of the scores before the softmax.
        causal: whether a query sees the keys up to its own position only.

    Returns:
        output (B, H, L, D) and logsumexp (B, H, L): of each query's scaled scores, in float32 or better.

    Raises:
        ValueError: no kernel takes such tensors; see `refuses`.
    """
    reason = refuses(query, key, value, causal)
    if reason is not None:
        raise ValueError(reason)
    if query.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(query, key, value, 0.0, causal, scale=scaling)
    fits = query.is_meta or _fits_flash(query, key, value, causal)  # on meta shapes and memory are as on a GPU
    return (flash_kernel if fits else efficient_kernel)(query, key, value, scaling, causal)


def flash_kernel(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor]:
    """FlashAttention on a GPU; see `flash_attention`."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    output, logsumexp, *_ = kernel(query, key, value, 0.0, causal, scale=scaling)
    return output, logsumexp


def efficient_kernel(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Memory-efficient attention on a GPU, which takes float32 too; see `flash_attention`."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    output, logsumexp, *_ = kernel(query, key, value, None, True, 0.0, causal, scale=scaling)
    return output, logsumexp[..., : query.shape[2]]  # its rows are rounded up


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
    check_arguments(module, kwargs, "which no prefill in chunks knows")
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
        if seen and layer.keys.data_ptr() != keys.data_ptr():  # a kernel's single tokens are elsewhere
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)
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
    cache: Cache,
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
        attention_mask = None if attention_mask.all() else (attention_mask != 0).to(model.device)
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
