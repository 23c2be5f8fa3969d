"""Let a model attend through an EvictingCache, by transformers' attention interface."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from recurformer.baselines.cache import EvictingCache
from recurformer.baselines.pruning import StatePruning
from recurformer.model.attending import attending_by, refuse

IMPLEMENTATION = "recurformer_evicting"


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    evicting_cache: EvictingCache | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    if evicting_cache is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    refuse(module, kwargs, "which an EvictingCache cannot honour", "sliding_window")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return evicting_cache.attend(module.layer_idx, query, key, value, attention_mask, scaling), None


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def _hand_cache(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    """Before an attention module: let its attention function know the cache."""
    cache = kwargs.get("past_key_values")
    if not isinstance(cache, EvictingCache):
        return None
    cache.watched = module.layer_idx
    return args, {**kwargs, "evicting_cache": cache}


def _enter_layer(module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    """Before a decoder layer: rotate only the tokens that come to it."""
    cache, states = kwargs.get("past_key_values"), args[0]
    if not (isinstance(cache, EvictingCache) and cache.eviction.prunes_states):
        return None
    if module.self_attn.layer_idx == 0:
        cache.pruning = StatePruning(states) if states.shape[1] > 1 else None
    if cache.pruning is None:
        return None
    rotation = tuple(cache.pruning.of_places(part) for part in kwargs["position_embeddings"])
    return args, {**kwargs, "position_embeddings": rotation}


def _leave_layer(module: Any, args: tuple, kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
    """Behind a decoder layer: send on the tokens that stay; behind the last, all of them as far as they came."""
    cache = kwargs.get("past_key_values")
    if not isinstance(cache, EvictingCache) or cache.pruning is None:
        return None
    states = cache.pruning.next_states(output)
    return cache.pruning.states if module.self_attn.layer_idx == len(cache.layers) - 1 else states


@contextmanager
def evicting(model: PreTrainedModel) -> Iterator[None]:
    """Inside, an EvictingCache given to `model` or to its generate() evicts; afterwards the model is as before.

    Any other cache works as ever, with transformers' "sdpa" attention.

    Raises:
        ValueError: the model does not attend through transformers' attention interface.
    """
    layers: Any = model.base_model.layers
    with attending_by(model, IMPLEMENTATION), ExitStack() as stack:
        for layer in layers:
            for handle in _hooks(layer):
                stack.callback(handle.remove)
        yield


def _hooks(layer: nn.Module) -> list[Any]:
    attention: Any = layer.self_attn
    return [
        attention.register_forward_pre_hook(_hand_cache, with_kwargs=True),
        layer.register_forward_pre_hook(_enter_layer, with_kwargs=True),
        layer.register_forward_hook(_leave_layer, with_kwargs=True),
    ]
