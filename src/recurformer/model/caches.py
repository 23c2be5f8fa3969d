"""The layers of a converted model's cache: the library's, with every method right for mixers' states, or refused.

The model puts them in the place of the library's own when it first reads into a cache.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedConfig
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndStaticFullAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
    StaticLayer,
)
from transformers.utils.import_utils import is_tracing

from .layout import SLIDING

NO_WAY_BACK = (
    "this cache gives no tokens back (crop, activate_past_recording, the draft of assisted generation), because it does"
    " not keep them one by one: copy it before (copy.deepcopy) and continue from the copy"
)
MASK_REFUSED = (
    "attention_mask does not call the same cached tokens real as when they were read, but a mixer's state cannot change"
    " that: give the attention_mask of all tokens so far (generate() takes every pad_token_id for padding without one)"
)
EXPORT_REFUSED = (
    "torch.export of a converted model with a cache would lose the mixers' states: export it with use_cache=False"
)

GROWTH = 32
"""Tokens by which keys, values and windows grow when a step needs room: each time all are copied."""


class Kept:
    """The part of all layers, and of caches that cannot crop either: what they have read stays read."""

    is_croppable = False

    def activate_past_recording(self) -> None:
        """Refuse: there is no past to record.

        Raises:
            ValueError: always.
        """
        raise ValueError(NO_WAY_BACK)

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse to give tokens back.

        Raises:
            ValueError: there are some to give back.
        """
        if tokens_to_remove:
            raise ValueError(NO_WAY_BACK)


class Roomy:
    """Keys and values with room for tokens to come, so that a step writes one row of each instead of copying all."""

    is_initialized: bool  # of the library's layer
    keys: Any
    values: Any

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        self.room: dict[str, Tensor] = {}

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """As the library's."""
        quick = key_states.shape[-2] == 1 and not torch.is_grad_enabled() and not is_tracing(key_states)
        rooms = self.rooms(key_states) if quick else None
        if rooms is None:
            return super().update(key_states, value_states, *args, **kwargs)  # type: ignore[misc]
        for room, row in zip(rooms, (key_states, value_states), strict=True):
            room[:, :, self.tokens : self.tokens + 1] = row
        self.lengthen()
        return self.keys, self.values

    def rooms(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the rooms of keys and values (B, KV heads, tokens and more, head_dim): the next token has a row there.

        None where there are no keys yet, or keys of another type or of other rows than `like` has.
        """
        if not self.is_initialized or not self.keys.numel():
            return None
        fits = self.keys.dtype == like.dtype and len(self.keys) == len(like)
        return (self._room("keys", self.keys), self._room("values", self.values)) if fits else None

    def _room(self, name: str, held: Tensor) -> Tensor:
        """Return the room of keys or values (B, KV heads, tokens, head_dim), a new one where they fill theirs."""
        tokens, room = held.shape[2], self.room.get(name, held)
        ours = room.data_ptr() == held.data_ptr() and room.shape[:2] == held.shape[:2]
        if not ours or room.shape[2] <= tokens or (room.is_inference() and not torch.is_inference_mode_enabled()):
            self.room[name] = room = held.new_empty(*held.shape[:2], tokens + GROWTH, held.shape[3])
            room[:, :, :tokens] = held
        return room

    @property
    def tokens(self) -> int:
        """Number of tokens whose keys it holds."""
        return int(self.keys.shape[2])

    def lengthen(self) -> None:
        """Take in the row that was written behind the keys and values in their rooms."""
        end = self.tokens + 1
        self.keys, self.values = self.room["keys"][:, :, :end], self.room["values"][:, :, :end]

    def reset(self) -> None:
        """As the library's."""
        super().reset()  # type: ignore[misc]
        self.room = {}


class RoomyLayer(Roomy, DynamicLayer):
    """Keys and values of an original."""


class AttentionLayer(Kept, RoomyLayer):
    """Keys and values alone."""


class SlidingLayer(Kept, DynamicSlidingWindowLayer):
    """Those of a sliding window."""


class StaticStateLayer(Kept, LinearAttentionLayer):
    """A mixer's states, beside static keys, whose rows the library cannot choose.

    Attributes:
        read: which of its tokens each row has read as real, as `squares` (B,); None: all of them, in every row.
    """

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        self.read: Tensor | None = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """As the library's."""
        super().reorder_cache(beam_idx)  # type: ignore[arg-type]
        self.read = None if self.read is None else self.read.index_select(0, beam_idx.to(self.read.device))

    def reset(self) -> None:
        """As the library's."""
        super().reset()
        self.read = None


class StateLayer(StaticStateLayer):
    """A mixer's states."""

    def choose_rows(self, choose: Callable[[Tensor], Tensor]) -> None:
        """Replace each of the mixer's tensors by `choose` of it."""
        self.read = None if self.read is None else choose(self.read)
        for states in (self.conv_states, self.recurrent_states):
            states.update({index: choose(state) for index, state in states.items() if state is not None})

    def batch_select_indices(self, indices: Tensor) -> None:
        """As the library's."""
        self.choose_rows(lambda x: x[indices, ...])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """As the library's."""
        self.choose_rows(lambda x: x.repeat_interleave(repeats, 0))

    def reset(self) -> None:
        """Hold nothing, as at first: more or fewer rows may follow."""
        super().reset()
        LinearAttentionLayer.__init__(self)


class HybridLayer(Roomy, StateLayer, LinearAttentionAndFullAttentionLayer):  # type: ignore[misc]
    """A mixer's states, and the retained heads' keys and values."""

    def batch_select_indices(self, indices: Tensor) -> None:
        """As the library's."""
        StateLayer.batch_select_indices(self, indices)
        DynamicLayer.batch_select_indices(self, indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """As the library's."""
        StateLayer.batch_repeat_interleave(self, repeats)
        DynamicLayer.batch_repeat_interleave(self, repeats)


class StaticHybridLayer(StaticStateLayer, LinearAttentionAndStaticFullAttentionLayer):  # type: ignore[misc]
    """The same with static keys and values."""


OURS: dict[type, type] = {
    DynamicLayer: AttentionLayer,
    DynamicSlidingWindowLayer: SlidingLayer,
    LinearAttentionLayer: StateLayer,
    LinearAttentionAndFullAttentionLayer: HybridLayer,
    LinearAttentionAndStaticFullAttentionLayer: StaticHybridLayer,
}
"""By the library's class."""


def with_room(cache: Cache, index: int) -> Roomy | None:
    """Return a cache's layer with room for tokens to come: ours, or what takes the place of a plain one. Else None."""
    layer = cache.layers[index] if index < len(cache.layers) else None
    if type(layer) is DynamicLayer:
        roomy = RoomyLayer()
        vars(roomy).update(vars(layer))
        cache.layers[index] = layer = roomy
    return layer if isinstance(layer, Roomy) else None


def kind(layer: Any) -> str:
    """Return the type of a cache's layer, in the words of `config.layer_types`."""
    if not isinstance(layer, LinearAttentionCacheLayerMixin):
        return SLIDING if getattr(layer, "is_sliding", False) else "full_attention"
    return "hybrid" if isinstance(layer, CacheLayerMixin) else "linear_attention"


def _tensors(layer: Any) -> list[Tensor]:
    """Return the tensors (rows, ...) that a layer holds."""
    states = (*getattr(layer, "conv_states", {}).values(), *getattr(layer, "recurrent_states", {}).values())
    every = (getattr(layer, "keys", None), *states, getattr(layer, "read", None))
    return [x for x in every if x is not None and x.numel()]


def check_cache(cache: Any, config: PreTrainedConfig, rows: int) -> None:
    """Check that a cache fits the model and an input of so many rows, and put our layers into a new one.

    Raises:
        ValueError: its layers are not those that the model keeps its keys and states in; it is filled, but not by a
            converted model; it has other rows; or it is to be exported.
    """
    if torch.compiler.is_exporting():
        raise ValueError(EXPORT_REFUSED)
    kinds, needed = [kind(layer) for layer in getattr(cache, "layers", ())], config.layer_types
    if kinds != needed:
        pairs = zip(kinds, needed, strict=False)
        wrong = next((index for index, pair in enumerate(pairs) if len(set(pair)) > 1), min(len(kinds), len(needed)))
        actual, expected = (each[wrong] if wrong < len(each) else "missing" for each in (kinds, needed))
        raise ValueError(
            f"past_key_values: layer {wrong} of the {type(cache).__name__} is {actual}, the model's is {expected}; make"
            " it by DynamicCache(config=model.config) or StaticCache(config=model.config, max_cache_len=...)"
        )
    static = any(isinstance(layer, StaticLayer) for layer in cache.layers)
    outside = not torch.compiler.is_compiling() and not torch.is_inference_mode_enabled()  # compiled code cannot ask
    for index, layer in enumerate(cache.layers):
        held = _tensors(layer)
        if (ours := OURS.get(type(layer))) is not None:
            cache.layers[index] = _opened(layer, StaticStateLayer if static and ours is StateLayer else ours)
        elif any(len(x) != rows for x in held):
            raise ValueError(
                f"past_key_values has {len(held[0])} rows, the input {rows}: choose the cache's rows by"
                " batch_select_indices or batch_repeat_interleave, or make a new cache"
            )
        elif isinstance(layer, StateLayer) and outside and any(x.is_inference() for x in held):
            layer.choose_rows(Tensor.clone)  # they are updated in place, which torch refuses outside that mode


def _opened(layer: Any, ours: type) -> Any:
    """Return a new layer of the class `ours` in place of a library's, which must be empty."""
    if getattr(layer, "record_past", False):
        raise ValueError(NO_WAY_BACK)
    if _tensors(layer):
        raise ValueError(
            "past_key_values holds keys, but no states of the model's mixers: copy a cache by copy.deepcopy, not by its"
            " keys"
        )
    settings = ("max_cache_len", "sliding_window")
    return ours(**{name: getattr(layer, name) for name in settings if hasattr(layer, name)})


def squares(real: Tensor, before: Any) -> Tensor:
    """Tell masks apart: for each row of a mask (B, L), the sum of the squares of the places (from 1) of real tokens.

    There are `before` tokens before the mask's first.
    """
    places = torch.arange(1, real.shape[1] + 1, device=real.device) + before
    return ((real != 0) * places.square()).sum(1)


def _all_real(tokens: Any) -> Any:
    """`squares` of so many tokens without padding."""
    return tokens * (tokens + 1) * (2 * tokens + 1) // 6


def _recorder(cache: Cache | None) -> StaticStateLayer | None:
    """Return the layer that knows what the cache has read."""
    return next((layer for layer in getattr(cache, "layers", ()) if isinstance(layer, StaticStateLayer)), None)


def check_mask(attention_mask: Tensor | None, cache: Cache | None) -> None:
    """Check that a mask says of the cached tokens what those before it said: states can neither give nor take them.

    Args:
        attention_mask: (B, tokens so far), 0 at padding, or None; more columns are of later tokens.
        cache: holds the tokens before this input, or None.

    Raises:
        ValueError: it says otherwise. In compiled code, RuntimeError when it runs.
    """
    layer = _recorder(cache)
    if cache is None or layer is None or (layer.read is None and attention_mask is None):
        return
    seen = cache.get_seq_length()
    given: Any = layer.read if attention_mask is None else attention_mask
    compiled = torch.compiler.is_compiling()
    if given.is_meta or (is_tracing(given) and not compiled):  # a recorded graph is replayed on other caches' content
        return
    if attention_mask is None:
        told = _all_real(seen)
    else:
        cached = torch.arange(attention_mask.shape[1], device=attention_mask.device) < seen
        told = squares(attention_mask * cached, 0)
    same = told == (_all_real(seen) if layer.read is None else layer.read)
    if compiled:
        torch._assert_async(same.all(), MASK_REFUSED)
    elif not same.all():
        raise ValueError(MASK_REFUSED)


def record_mask(padding_mask: Tensor | None, length: int, cache: Cache | None) -> None:
    """Let the cache know which of the next tokens are real.

    Args:
        padding_mask: (B, length), 0 at padding, or None.
        length: tokens of this input.
        cache: holds the tokens before it, or None.
    """
    layer = _recorder(cache)
    if cache is None or layer is None or (layer.read is None and padding_mask is None):
        return
    seen = cache.get_seq_length()
    new = _all_real(seen + length) - _all_real(seen) if padding_mask is None else squares(padding_mask, seen)
    if layer.read is None:
        layer.read = new + _all_real(seen)
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(layer.read)  # else compiled code would run without CUDA graphs
    else:
        layer.read.add_(new)  # in place: a recorded CUDA graph counts on
