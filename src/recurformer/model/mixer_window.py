"""Softmax attention to the last tokens and to the first ones, alone or beside a recurrent state of all tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers import initialization as init
from transformers.cache_utils import StaticLayer

from . import cpp_step
from .caches import GROWTH, StateLayer
from .layout import HeadLayout
from .masks import Packing
from .mixer import Mixer, ReplacedHeads, any_length, at_spans, repeat_heads, spans
from .mixers_state import Retention
from .packed import FULL_BITS, hadamard, pack, packed_bytes, unpack

BLOCK = 64  # least number of queries that are compared with their keys at once
WIDE = 256  # tokens of a window from which on its blocks are attended one after the other, without copies of the keys
SLICES = 8  # such blocks in a window: more compare fewer keys in vain, and call more often


@dataclass(frozen=True)
class Window:
    """Attention of some KV heads' queries to the last `tokens` tokens and to the first `sinks`.

    Attributes:
        tokens: the last ones, a query's own among them.
        sinks: the first ones.
        bits: of each number of the keys and values that the cache holds.
        groups: the KV heads, by their place among those that replaced heads read.
        copies: query heads of each.
    """

    tokens: int
    sinks: int
    bits: int
    groups: tuple[int, ...]
    copies: tuple[int, ...]

    @property
    def slots(self) -> int:
        """Number of tokens whose keys and values the cache holds at most."""
        return self.sinks + self.tokens

    def stored(self, head_dim: int, itemsize: int) -> tuple[int, int, int]:
        """Return tokens of the ring, bits of a stored number, bytes of a slot; unpacked numbers have `itemsize`."""
        if self.bits == FULL_BITS:
            return self.tokens, 8 * itemsize, 2 * head_dim * itemsize
        return self.tokens, self.bits, 2 * packed_bytes(head_dim, self.bits)

    def no_slots(self, entries: Tensor, held: int) -> Tensor:
        """Return slots without tokens (B, held, KV heads, width) for entries (B, L, KV heads, 2 head_dim)."""
        shape = (len(entries), held, len(self.groups))
        if self.bits == FULL_BITS:
            return entries.new_zeros(*shape, entries.shape[-1])
        return entries.new_zeros(*shape, 2 * packed_bytes(entries.shape[-1] // 2, self.bits), dtype=torch.uint8)

    def attend(
        self,
        queries: Tensor,
        entries: Tensor,
        slots: Tensor,
        most: int,
        places: Tensor,
        seen: tuple[Tensor, Tensor],
        even: bool,
        alone: bool,
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        """Attend within the window after the cached tokens.

        Args:
            queries: of the new tokens, (B, L, heads, head_dim).
            entries: their keys and values, (B, L, KV heads, 2 head_dim).
            slots: the cached ones, (B, held, KV heads, width): the sinks, then a ring of the last tokens (see
                `_slot_places`). They are packed where `bits` says so.
            most: number of slots that there may be after the new tokens.
            places: of the new tokens, (B, L); -1 is no place.
            seen: number of tokens before and after the new ones, (B, 1) each.
            even: whether no new token is padding.
            alone: whether the new tokens are known to be all of them too.
            dropout: of the weights.

        Returns:
            outputs (B, L, H * head_dim), and the slots after the new tokens.
        """
        held = slots.shape[1]
        in_order = self._places_in_order(seen[0], held)
        slots = slots.gather(1, self._slot_of(in_order)[:, :, None, None].expand(-1, -1, *slots.shape[2:]))
        packs = self.bits != FULL_BITS
        if packs:  # all that follows is turned: queries, keys and values
            dtype, (queries, keys, values) = queries.dtype, map(hadamard, (queries, *entries.chunk(2, -1)))
            kept = torch.cat([pack(x, self.bits) for x in (keys, values)], -1)
            queries, entries = queries.to(dtype), torch.cat([keys, values], -1).to(dtype)
        columns = torch.cat([slots, kept if packs else entries], 1)
        read = self._unpacked(columns, entries) if packs else columns  # (B, held + L, KV heads, 2 head_dim)
        slot_places = self._slot_places(seen[1], min(most, held + entries.shape[1]))
        chosen = self._columns_of(slot_places, seen[0], held)[:, :, None, None]
        column_places = torch.cat([in_order, places], 1)
        # sinks stand in front of every block; where they lie in the window too they must not count twice
        column_places = column_places.masked_fill(column_places < self.sinks, -1)
        first, last = chosen[:, : self.sinks], slice(min(self.sinks, held), None)
        # of an input's beginning the window hides nothing but what comes later, which needs no mask
        head = min(self.tokens, queries.shape[1]) if alone and not torch.compiler.is_compiling() else 0
        outputs = [self._attend(queries[:, :head], read[:, held : held + head], None, dropout)] if head else []
        if not head or head < queries.shape[1]:
            rest = self._attend_by_block(
                (queries[:, head:], places[:, head:]),
                (read.gather(1, first.expand(-1, -1, *read.shape[2:])), slot_places[:, : self.sinks]),
                (read[:, last], column_places[:, last]),
                even,
                dropout,
            )
            outputs.append(rest)
        mixed = torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]  # (B, L, H, head_dim)
        if packs:
            mixed = hadamard(mixed).to(dtype)
        return mixed.flatten(2), columns.gather(1, chosen.expand(-1, -1, *columns.shape[2:]))

    def _unpacked(self, columns: Tensor, newest: Tensor) -> Tensor:
        """Return packed columns as numbers (B, any, KV heads, 2 head_dim), the last with the gradient of `newest`."""
        read = torch.cat([unpack(x, self.bits, newest.dtype) for x in columns.chunk(2, -1)], -1)
        if not newest.requires_grad:
            return read
        before = read.shape[1] - newest.shape[1]
        return torch.cat([read[:, :before], read[:, before:] + (newest - newest.detach())], 1)

    def _attend_by_block(
        self,
        new: tuple[Tensor, Tensor],
        first: tuple[Tensor, Tensor],
        last: tuple[Tensor, Tensor],
        even: bool,
        dropout: float,
    ) -> Tensor:
        """Attend from the new queries, block by block, to the first entries and to the last ones before each query.

        Args:
            new: queries (B, L, H, head_dim) and their places (B, L).
            first: the sinks' entries (B, sinks, KV heads, 2 head_dim) and places.
            last: entries (B, any + L, KV heads, 2 head_dim) of the window and of the new tokens, and their places.
            even: whether no new token is padding.
            dropout: of the weights.

        Returns:
            outputs (B, L, H, head_dim).
        """
        length, size = new[0].shape[1], max(BLOCK, self.tokens)
        if not any_length(length, size):
            if length > size or size > WIDE:
                return self._attend_by_slices(new, first, last, even, dropout)
            read, there = (torch.cat(parts, 1) for parts in zip(first, last, strict=True))
            return self._attend_to_places((new[0], read, new[1], there), dropout)
        own, near = (spans(length, size, width, new[1].device) for width in (size, self.tokens + size))
        near = near + (last[1].shape[1] - length - self.tokens)  # negative before the first of them
        queries, here = (at_spans(x, own, 1, beyond) for x, beyond in zip(new, (0, -1), strict=True))
        sinks = (x.unsqueeze(1).expand(-1, own.shape[0], *x.shape[1:]) for x in first)
        others = (at_spans(x, near, 1, beyond) for x, beyond in zip(last, (0, -1), strict=True))
        read, there = (torch.cat(parts, 2) for parts in zip(sinks, others, strict=True))
        blocks = (x.flatten(0, 1) for x in (queries, read, here, there))  # a block is a row of its own
        outputs = self._attend_to_places(blocks, dropout).unflatten(0, (queries.shape[0], own.shape[0]))
        return outputs.flatten(1, 2).index_select(1, torch.arange(length, device=own.device))

    def _attend_by_slices(
        self,
        new: tuple[Tensor, Tensor],
        first: tuple[Tensor, Tensor],
        last: tuple[Tensor, Tensor],
        even: bool,
        dropout: float,
    ) -> Tensor:
        """The same block after block, each with no more entries than one of its queries may see.

        Blocks of as many queries that see new tokens alone, and all sinks, share one mask.
        """
        (queries, here), (entries, there) = new, last
        if queries.is_meta:  # sizes alone are counted there, of inputs so long that a loop would take a minute
            return torch.empty_like(queries)
        length, before = queries.shape[1], there.shape[1] - queries.shape[1]
        size, outputs = max(BLOCK, self.tokens // SLICES), []
        masks: dict[int, Tensor] = {}
        for start in range(0, length, size):
            stop = min(start + size, length)
            near = slice(max(0, before + start + 1 - self.tokens), before + stop)
            steady = even and near.start >= before + self.sinks
            mask = masks.get(stop - start) if steady else None
            if mask is None:
                seen = torch.cat([first[1], there[:, near]], 1)
                visible = self._visible(here[:, start:stop], seen)
                mask = torch.zeros_like(visible, dtype=queries.dtype).masked_fill_(~visible, -torch.inf)
                if steady:
                    masks[stop - start] = mask
            read = torch.cat([first[0], entries[:, near]], 1)
            outputs.append(self._attend(queries[:, start:stop], read, mask, dropout))
        return torch.cat(outputs, 1)

    def _attend_to_places(self, block: Iterable[Tensor], dropout: float) -> Tensor:
        """Attend from queries to entries, at the places `here` (B, Q) and `there` (B, K); -1 is no place."""
        queries, entries, here, there = block
        return self._attend(queries, entries, self._visible(here, there), dropout)

    def _visible(self, here: Tensor, there: Tensor) -> Tensor:
        """Return which of the entries at places `there` (B, K) queries at `here` (B, Q) see, (B, 1, Q, K)."""
        here, there = here.unsqueeze(-1), there.unsqueeze(1)
        visible = (there >= 0) & (there <= here) & ((there < self.sinks) | (there > here - self.tokens))
        return (visible | (here < 0)).unsqueeze(1)  # padding sees anything: an empty row has no softmax

    def _attend(self, queries: Tensor, entries: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        """Attend from queries (B, Q, H, head_dim) to entries under a mask, or to all that are not behind: no mask."""
        # under a mask, only the processor's kernel reads the keys of a group without copies
        grouped = len(set(self.copies)) == 1 and entries.device.type == "cpu"
        entries = entries.transpose(1, 2) if grouped else repeat_heads(entries.transpose(1, 2), self.copies)
        queries, (keys, values) = queries.transpose(1, 2), entries.chunk(2, -1)
        outputs = F.scaled_dot_product_attention(
            queries, keys, values, mask, dropout, is_causal=mask is None, enable_gqa=grouped
        )
        return outputs.transpose(1, 2).contiguous()

    def _slot_places(self, seen: Tensor, held: int) -> Tensor:
        """Return the place of the token in each of the slots (B, held) after `seen` tokens (B, 1); -1 if empty.

        Slots of sinks keep their tokens. Each of the others holds the newest token that comes to it: token `sinks + i`
        comes to slot `sinks + i % tokens`, so a step writes one slot.
        """
        slot = torch.arange(held, device=seen.device)
        rounds = (seen - 1 - slot).div(self.tokens, rounding_mode="floor").clamp(min=0)
        places = torch.where(slot < self.sinks, slot, slot + rounds * self.tokens)
        return torch.where(places < seen, places, -1)

    def _slot_of(self, places: Tensor) -> Tensor:
        """Return the slots of the tokens at `places`; of -1 any."""
        return torch.where(places < self.sinks, places.clamp(min=0), self.sinks + (places - self.sinks) % self.tokens)

    def _places_in_order(self, seen: Tensor, held: int) -> Tensor:
        """Return the places that `held` slots hold (B, held): the sinks, then the last tokens, the newest last."""
        first = min(self.sinks, held)
        sinks = torch.arange(first, device=seen.device)
        recent = seen + torch.arange(first - held, 0, device=seen.device)
        empty = seen.new_full((), -1)
        return torch.cat([torch.where(sinks < seen, sinks, empty), torch.where(recent < self.sinks, empty, recent)], 1)

    def _columns_of(self, places: Tensor, seen: Tensor, held: int) -> Tensor:
        """Return where the tokens at `places` (B, any) stand: in `held` slots in order, or behind them if they are new.

        Args:
            places: -1 for anything.
            seen: number of tokens before the new ones, (B, 1).
            held: number of slots after these.
        """
        in_sinks = (places < min(self.sinks, held)) & (places < seen)
        return torch.where(in_sinks, places, places - seen + held).clamp(min=0)


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
    static cache has all of them from the beginning. Keys and values of 8 or 4 bits are packed before anything reads
    them, a token's own too, so that an input gives the same outputs in any pieces, but for numbers that rounding moves
    to the next step. In training the packed numbers have the gradient of what was packed, those in a cache none. The
    number of tokens seen, which the
    cache holds for every row, tells which token is in which slot; padding counts as no token, wherever it stands.
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
        places = {
            group: (index, place)
            for index, window in enumerate(self.windows)
            for place, group in enumerate(window.groups)
        }
        self.places = tuple(
            (*places[group], first, last - first) for group, (first, last) in enumerate(self.query_spans)
        )
        self.dropout = config.attention_dropout
        # taken from every key where some are packed: their bits then serve what tells keys apart
        self.center: Tensor | None
        self.register_buffer("center", None if set(bits) == {FULL_BITS} else torch.zeros(count, head_dim))

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
        """Attend within the windows after the cached tokens, and put the new ones into the cache.

        Args:
            values: as of `Mixer`.
            cache: as of `Mixer`; every window's slots are a state of their own.
            seen: number of tokens seen, (B, 1); None at the beginning.
            padding_mask: as of `Mixer`.
            heads: as of `Mixer`.

        Returns:
            outputs (B, L, H * head_dim), and `seen` after them.
        """
        if seen is not None and padding_mask is None and (output := self._step(values, cache, seen, heads)) is not None:
            return output, seen
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
        mixed = self._in_order(outputs).to(values.dtype)
        return mixed if packing is None else packing.unpack(mixed), after

    def _step(self, values: Tensor, cache: Any, seen: Tensor, heads: ReplacedHeads) -> Tensor | None:
        """Attend from one token by the C++ kernel, slots and `seen` in place; None where it cannot take the inputs."""
        cos, sin = heads.position_embeddings or (None, None)
        rows = (values, heads.queries, heads.keys, cos, sin)
        if values.shape[1] != 1 or values.dtype not in cpp_step.ROWS or (self.training and self.dropout):
            return None
        if not cpp_step.takes(rows, (self.center,), values.dtype):
            return None
        held = cache.layers[self.layer_index].conv_states
        for index, window in enumerate(self.windows):
            slots = held[index]
            if not slots.is_contiguous() or slots.dtype not in (torch.uint8, values.dtype):
                return None
            if slots.shape[1] < window.slots and room_of(cache, self.layer_index) is None:
                held[index] = self._with_room(slots, window.slots, seen)
        return cpp_step.window_step(
            cpp_step.WindowStepInputs(
                queries=heads.queries,
                keys=heads.keys,
                values=values,
                cos=cos,
                sin=sin,
                center=self.center,
                seen=seen,
                slots=[held[index] for index in range(len(self.windows))],
                windows=[window.stored(self.head_dim, values.itemsize) for window in self.windows],
                groups=self.places,
                sinks=self.windows[0].sinks,
            )
        )

    def _with_room(self, slots: Tensor, most: int, seen: Tensor) -> Tensor:
        """Return slots (B, held, ...) with room for the token after `seen` others (B, 1)."""
        held = slots.shape[1]
        if int(seen.max()) < held:
            return slots
        return torch.cat([slots, slots.new_zeros(slots.shape[0], min(GROWTH, most - held), *slots.shape[2:])], 1)

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

    def _in_order(self, outputs: list[Tensor]) -> Tensor:
        """Return the outputs of all windows (B, L, their heads * head_dim) in the order of the heads."""
        if len(outputs) == 1:
            return outputs[0]
        of_group: dict[int, Tensor] = {}
        for window, output in zip(self.windows, outputs, strict=True):
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

    def forward(self, values: Tensor, cache: Cache | None, padding_mask: Tensor | None, heads: ReplacedHeads) -> Tensor:
        """Attend within the window, and add the readout of the state; see `Mixer`."""
        seen = state = None
        if (packed := self.previous(cache, "recurrent")) is not None:
            size = self.head_dim, self.head_dim + 1
            seen, state = packed[:, :1].long(), packed[:, 1:].unflatten(1, (-1, *size))
        near, seen = self.window.attend(values, cache, seen, padding_mask, heads)
        features, state = self.retain(values, state, padding_mask, heads)
        if cache is not None:
            cache.update_recurrent_state(torch.cat([seen.to(state.dtype), state.flatten(1)], 1), self.layer_index)
        return near + self.readout(torch.cat([near, features], -1))
