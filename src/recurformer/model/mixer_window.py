"""Mixers that attend to the last tokens and to the first ones, alone or beside a recurrent state of all tokens."""

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers import initialization as init
from transformers.cache_utils import StaticLayer

from . import cpp_step
from .caches import GROWTH, StateLayer
from .layout import HeadLayout
from .masks import Packing
from .mixer import Mixer, ReplacedHeads
from .mixers_state import Retention
from .packed import FULL_BITS
from .window import Window


def room_of(cache: Cache | None, layer_index: int) -> int | None:
    """Return the tokens for which a static cache has its tensors from the beginning; None where they grow."""
    if cache is None or isinstance(cache.layers[layer_index], StateLayer):
        return None
    rooms = [layer.max_cache_len for layer in cache.layers if isinstance(layer, StaticLayer)]
    return max(rooms) if rooms else None


class WindowMixer(Mixer):
    """Attends to the last `window_tokens` tokens, the token itself among them, and to the first `sink_tokens`.

    The sinks are StreamingLLM's (arXiv 2309.17453). There are no parameters: queries, keys and values are the replaced
    heads' own, so it works without training. Unlike StreamingLLM, keys keep the rotation of their true places, as in
    the original model. With the config's `group_windows` and `group_bits` every KV head has a window of its own; those
    that are alike are computed together.

    The cache has a slot for each of the tokens, which holds its key and value; it grows until all are filled, and a
    static cache has all of them from the beginning. Where they have fewer bits than the model computes with, they are
    packed before anything reads them, a token's own too. So an input gives the same outputs in any pieces, but for
    numbers that rounding moves to the next step. In training the packed numbers have the gradient of what was packed,
    those in a cache none. The number of tokens seen, which the cache holds for every row, tells which token is in which
    slot; padding counts as no token, wherever it stands.
    """

    reads_keys = True

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(config, layout, head_dim, layer_index)
        count = len(self.copies)
        sizes, bits = [config.window_tokens] * count, [FULL_BITS] * count
        if config.group_windows is not None:
            sizes = config.group_windows[layer_index]
        if config.group_bits is not None:
            bits = config.group_bits[layer_index]
        alike: dict[tuple[int, int], list[int]] = {}
        for group, kept in enumerate(zip(sizes, bits, strict=True)):
            alike.setdefault(kept, []).append(group)
        self.windows = [
            Window(size, config.sink_tokens, width, tuple(groups), tuple(self.copies[group] for group in groups))
            for (size, width), groups in sorted(alike.items())
        ]
        self.query_spans = list(pairwise(accumulate(self.copies, initial=0)))
        self.places = self._places()
        self.sizes = [self._of_size(size) for size in sorted({window.tokens for window in self.windows})]
        self.dropout = config.attention_dropout
        # taken from every key where some are packed: their bits then serve what tells keys apart
        self.center: Tensor | None
        self.register_buffer("center", None if set(bits) == {FULL_BITS} else torch.zeros(count, head_dim))

    def _places(self) -> tuple[tuple[int, ...], ...]:
        """Return of each KV head what `cpp_step.WindowGroup` names."""
        places: dict[int, tuple[int, ...]] = {}
        query = 0
        for index, window in enumerate(self.windows):
            for place, group in enumerate(window.groups):
                count = self.copies[group]
                places[group] = (index, place, self.query_spans[group][0], count, len(places), query)
                query += count
        return tuple(places[group] for group in range(len(places)))

    def _of_size(self, size: int) -> Window:
        """Return the KV heads whose windows have this size, as one window, whatever their bits."""
        alike = [window for window in self.windows if window.tokens == size]
        groups = tuple(group for window in alike for group in window.groups)
        return Window(size, alike[0].sinks, FULL_BITS, groups, tuple(self.copies[group] for group in groups))

    @torch.no_grad()
    def init_weights(self) -> None:
        """Take nothing from the keys."""
        if self.center is not None:
            init.zeros_(self.center)

    def forward(self, values: Tensor, cache: Cache | None, padding_mask: Tensor | None, heads: ReplacedHeads) -> Tensor:
        """Attend within the windows; see `Mixer`."""
        outputs, seen = self.attend(values, cache, self.previous(cache, "recurrent"), padding_mask, heads)
        if cache is not None:
            cache.update_recurrent_state(seen, self.layer_index)
        return outputs

    def attend(
        self,
        values: Tensor,
        cache: Cache | None,
        seen: Tensor | None,
        padding_mask: Tensor | None,
        heads: ReplacedHeads,
    ) -> tuple[Tensor, Tensor]:
        """Attend within the windows after the cached tokens, and put the new ones into the cache; see `Mixer`.

        Every window's slots are a state of their own. `seen` is the number of tokens seen, (B, 1); None at the
        beginning.

        Returns:
            outputs (B, L, H * head_dim), and `seen` after them.
        """
        if padding_mask is None and (quick := self._by_kernel(values, cache, seen, heads)) is not None:
            return quick
        queries, keys = (x.transpose(1, 2) for x in heads.rotated())  # (B, L, heads, head_dim)
        if self.center is not None:
            keys = keys - self.center
        entries = torch.cat([keys, values.unflatten(2, (-1, self.head_dim))], -1)  # (B, L, KV heads, 2 head_dim)
        packing = None if padding_mask is None else Packing(padding_mask)
        if packing is not None:  # else padding would take the place of tokens in the window before a block
            queries, entries = (packing.pack(x.flatten(2)).unflatten(2, x.shape[2:]) for x in (queries, entries))
        before = entries.new_zeros(len(entries), 1, dtype=torch.long) if seen is None else seen
        places = before + torch.arange(queries.shape[1], device=before.device)  # of the new tokens, (B, L)
        if packing is not None:
            places = places.masked_fill(~packing.real, -1)
        after = before + (queries.shape[1] if packing is None else packing.counts)
        dropout = self.dropout if self.training else 0.0
        outputs, room = [], room_of(cache, self.layer_index)
        for index, window in enumerate(self.windows):
            own = self._of(window, queries, self.query_spans), self._of(window, entries, None)
            most = window.slots if room is None else min(window.slots, room)
            slots = None if seen is None else self.previous(cache, "conv", index)
            if slots is None:
                slots = window.no_slots(entries, 0 if room is None else most)
            even = packing is None
            output, slots = window.attend(
                *own, slots, most, places, (before, after), even, even and seen is None, dropout
            )
            outputs.append(output)
            if cache is not None:
                self._hold(cache, slots, index)
        mixed = self._in_order(self.windows, outputs).to(values.dtype)
        return mixed if packing is None else packing.unpack(mixed), after

    def _by_kernel(
        self, values: Tensor, cache: Any, seen: Tensor | None, heads: ReplacedHeads
    ) -> tuple[Tensor, Tensor] | None:
        """As `attend`, of one token or of an input's beginning; None where the C++ kernels cannot take the inputs."""
        cos, sin = heads.position_embeddings or (None, None)
        rows = (values, heads.queries, heads.keys, cos, sin)
        if (seen is not None and values.shape[1] != 1) or (self.training and self.dropout):
            return None
        if not cpp_step.takes(rows, (self.center,), values.dtype):
            return None
        slots = self._beginning(values, cache) if seen is None else self.slots_of_step(values.dtype, cache)
        if slots is None:
            return None
        inputs = cpp_step.WindowStepInputs(
            queries=heads.queries,
            keys=heads.keys,
            values=values,
            cos=cos,
            sin=sin,
            center=self.center,
            seen=seen,
            slots=slots,
            windows=[window.stored(self.head_dim, values.itemsize) for window in self.windows],
            groups=self.places,
            sinks=self.windows[0].sinks,
        )
        if seen is not None:
            output = cpp_step.window_step(inputs)
            if output is None:
                output = cpp_step.window_step(inputs._replace(slots=self.more_slots(cache, seen)))
            if output is None:
                raise RuntimeError(f"the cache has no slot for a token after {int(seen.max())} others")
            return output, seen
        queries, entries = cpp_step.window_begin(inputs)
        outputs, group, query = [], 0, 0
        for window in self.sizes:
            groups, count = len(window.groups), sum(window.copies)
            own = queries[:, :, query : query + count], entries[:, :, group : group + groups]
            outputs.append(window.attend_from_beginning(*own, 0.0).flatten(2))
            group, query = group + groups, query + count
        if cache is not None:
            for index, held in enumerate(slots):
                self._hold(cache, held, index)
        return self._in_order(self.sizes, outputs), values.new_full((len(values), 1), values.shape[1], dtype=torch.long)

    def _beginning(self, values: Tensor, cache: Any) -> list[Tensor] | None:
        """Return slots (B, held, ...) for an input's first tokens; None in a static cache, which has them already."""
        if room_of(cache, self.layer_index) is not None:
            return None
        entries = values.new_empty(len(values), 0, 1, 2 * self.head_dim)
        return [window.no_slots(entries, min(window.slots, values.shape[1])) for window in self.windows]

    def slots_of_step(self, dtype: torch.dtype, cache: Any) -> list[Tensor] | None:
        """Return the slots; None where a step in this type cannot write to them."""
        held = cache.layers[self.layer_index].conv_states
        slots = [held[index] for index in range(len(self.windows))]
        fits = all(x.is_contiguous() and x.dtype in (torch.uint8, dtype) for x in slots)
        return slots if fits else None

    def more_slots(self, cache: Any, seen: Tensor) -> list[Tensor]:
        """Give windows that may have more of them room for the token after `seen` others (B, 1); return all slots."""
        held, place = cache.layers[self.layer_index].conv_states, int(seen.max())
        grows = room_of(cache, self.layer_index) is None
        for index, window in enumerate(self.windows):
            slots = held[index]
            count = min(GROWTH, window.slots - slots.shape[1])
            if grows and count and place >= slots.shape[1]:
                held[index] = torch.cat([slots, slots.new_zeros(len(slots), count, *slots.shape[2:])], 1)
        return [held[index] for index in range(len(self.windows))]

    def _hold(self, cache: Cache, state: Tensor, index: int) -> None:
        """Put a tensor (B, ...) that may grow into the cache, as the "conv" state of this number."""
        layer: Any = cache.layers[self.layer_index]
        held = layer.conv_states.get(index)
        if held is not None and held.shape == state.shape:
            held.copy_(state)  # in place: a recorded CUDA graph counts on
            return
        layer.conv_states[index] = state
        if layer.device is None:
            layer.dtype, layer.device = state.dtype, state.device
        layer.number_of_states = max(layer.number_of_states, index + 1)
        layer.is_conv_states_initialized[index] = layer.has_previous_state[index] = True
        layer.is_recurrent_states_initialized.setdefault(index, False)
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(state)

    def _of(self, window: Window, heads: Tensor, query_spans: list[tuple[int, int]] | None) -> Tensor:
        """Return those of the heads (B, L, heads, ...) that belong to a window; KV heads without spans of queries."""
        if len(self.windows) == 1:
            return heads
        taken = ((group, group + 1) if query_spans is None else query_spans[group] for group in window.groups)
        return torch.cat([heads[:, :, start:stop] for start, stop in taken], 2)

    def _in_order(self, windows: list[Window], outputs: list[Tensor]) -> Tensor:
        """Return the outputs of all windows (B, L, their heads * head_dim) in the order of the heads."""
        if len(outputs) == 1 and windows[0].groups == tuple(range(len(self.copies))):
            return outputs[0]
        of_group: dict[int, Tensor] = {}
        for window, output in zip(windows, outputs, strict=True):
            parts = output.split([count * self.head_dim for count in window.copies], -1)
            of_group |= dict(zip(window.groups, parts, strict=True))
        return torch.cat([of_group[group] for group in range(len(of_group))], -1)


class WindowStateMixer(Retention):
    """y = w + readout([w; y of retention; values]), w the window's output: attention nearby, retention farther back.

    Window and linear attention side by side are LoLCATs' (arXiv 2410.10254) and Infini-attention's (arXiv 2404.07143).
    Unlike LoLCATs', the state takes in the window's tokens too, and the outputs are added, without a common
    normaliser. A hybrid may learn to ignore its state (arXiv 2510.05901): compare it with the window alone.

    The readout starts at 0, so that the untrained mixer is the window. The cache's convolution slot holds the window;
    its recurrent slot holds [tokens seen; retention's state] of every row, flat, in float32, which counts to 2^24.
    """

    memories = (64.0,)

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(config, layout, head_dim, layer_index)
        self.window = WindowMixer(config, layout, head_dim, layer_index)
        self.readout = nn.Linear(self.outputs + self.features, self.outputs, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialise to the window alone."""
        super().init_weights()
        init.zeros_(self.readout.weight)

    def read_out(self, features: Tensor) -> Tensor:
        """Return the window's outputs, which come first, and the readout of everything."""
        return features[..., : self.outputs] + self.readout(features)

    def whole_readout(self) -> Tensor:
        """Return the matrix of `read_out`, in float32 at least."""
        weight = self.readout.weight.to(torch.promote_types(self.readout.weight.dtype, torch.float32))
        return weight + torch.eye(*weight.shape, dtype=weight.dtype, device=weight.device)

    def mix(self, values: Tensor, cache: Cache | None, padding_mask: Tensor | None, heads: ReplacedHeads) -> Tensor:
        """Attend within the window, and advance the state; returns the window's outputs and the state's features."""
        seen = state = None
        if (packed := self.previous(cache, "recurrent")) is not None:
            size = self.head_dim, self.head_dim + 1
            seen, state = packed[:, :1].long(), packed[:, 1:].unflatten(1, (-1, *size))
        near, seen = self.window.attend(values, cache, seen, padding_mask, heads)
        features, after = self.retain(values, state, padding_mask, heads)
        if packed is not None and after is state:
            packed[:, :1] = seen
        elif cache is not None:
            cache.update_recurrent_state(torch.cat([seen.to(after.dtype), after.flatten(1)], 1), self.layer_index)
        return torch.cat([near, features], -1)
