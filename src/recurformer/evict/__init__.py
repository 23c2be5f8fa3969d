"""Give a model a cache that evicts, and let it attend through that, by transformers' attention interface."""

from typing import Any

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from recurformer.evict.cache import EvictingCache, StatePruning
from recurformer.evict.context import Eviction
from recurformer.evict.methods import EVICTIONS
from recurformer.heads.probes import Repeated
from recurformer.model.layout import sliding_layers
from recurformer.model.prefill import attending_by, check_arguments

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
    check_arguments(module, kwargs, "which an EvictingCache cannot honour", "sliding_window")
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
    """After a decoder layer: send on the tokens that stay; after the last, all of them as far as they came."""
    cache = kwargs.get("past_key_values")
    if not isinstance(cache, EvictingCache) or cache.pruning is None:
        return None
    states = cache.pruning.next_states(output)
    return cache.pruning.states if module.self_attn.layer_idx == len(cache.layers) - 1 else states


def evicting(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model as it evicts with an EvictingCache, also in generate(); the given one stays as it is.

    It shares the weights. Any other cache works as ever, with transformers' "sdpa" attention.

    Raises:
        ValueError: the model does not attend through transformers' attention interface.
    """
    evicted = attending_by(model, IMPLEMENTATION)
    layers: Any = evicted.base_model.layers
    for layer in layers:
        layer.self_attn.register_forward_pre_hook(_hand_cache, with_kwargs=True)
        layer.register_forward_pre_hook(_enter_layer, with_kwargs=True)
        layer.register_forward_hook(_leave_layer, with_kwargs=True)
    return evicted


def make_eviction(
    model: PreTrainedModel, method: str, budget: float | int, repeated: Repeated | None = None
) -> Eviction:
    """Return a method with the facts about `model` that it needs.

    Args:
        model: a causal language model. Of a converted one only the retained heads evict.
        method: a name in `EVICTIONS`.
        budget: fraction (0, 1] of the tokens seen so far that the cache holds, on average over layers and heads, or a
            number of tokens.
        repeated: random tokens, repeated, on which a method may judge the heads; None: any of the vocabulary, on which
            a model that reads no text is hard to judge.

    Raises:
        ValueError: an unknown method, a bad budget, layers with a sliding window, or a converted model without
            attention heads, with query groups of unequal size, or with a method that cannot do it.
    """
    if method not in EVICTIONS:
        raise ValueError(f"method={method!r} is unknown; choose one of {', '.join(EVICTIONS)}")
    if any(getattr(model.config, "recurrent_heads", [])):
        _check_converted(model, method)
    if sliding := sliding_layers(model.config):
        raise ValueError(
            f"method={method!r} evicts from attention to everything; layer {sliding[0]} of this model attends through a"
            " sliding window"
        )
    return EVICTIONS[method].for_model(model, budget, repeated)


def _check_converted(model: PreTrainedModel, method: str) -> None:
    """Raise where the retained heads of a converted model cannot evict by a method."""
    eviction, base = EVICTIONS[method], model.base_model
    layers: Any = base.layers
    layouts = [layer.self_attn.layout for layer in layers if hasattr(layer.self_attn, "layout")]
    if eviction.prunes_states or "for_model" in vars(eviction):
        raise ValueError(f"method={method!r} judges heads, or drops tokens, of the whole model; this one is converted")
    if len(layouts) == len(layers) and not any(layout.retained for layout in layouts):
        raise ValueError(f"method={method!r} evicts from attention heads; all of this model's are replaced")
    if any(layout.ragged for layout in layouts):
        raise ValueError(f"method={method!r} needs query groups of one size; convert with whole groups (unit kv_group)")


def make_cache(model: PreTrainedModel, method: str, budget: float | int) -> EvictingCache:
    """Return an empty cache for one batch, to be used with `evicting(model)`: see `make_eviction`."""
    return empty_cache(model, make_eviction(model, method, budget))


def empty_cache(model: PreTrainedModel, eviction: Eviction) -> EvictingCache:
    """Return an empty cache of a method that was made for the model."""
    config = model.config
    types = config.layer_types if hasattr(config, "recurrent_heads") else ["full_attention"] * config.num_hidden_layers
    return EvictingCache(eviction, types)
