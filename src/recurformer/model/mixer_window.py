"""Softmax attention to the last tokens and to the first ones, alone or beside a recurrent state of all tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers import initialization as init

from .layout import HeadLayout
from .masks import Packing
from .mixer import Mixer, ReplacedHeads, any_length, at_spans, repeat_heads, spans
from .mixers_state import Retention

BLOCK = 64  # least number of queries that are compared with their keys at once


@dataclass(frozen=True)
class Window:
    """Attention of some KV heads' queries to the last `tokens` tokens and to the first `sinks`.

    Attributes:
        tokens: the last ones, a query's own among them.
        sinks: the first ones.
        groups: the KV heads, by their place among those that replaced heads read.
        copies: query heads of each.
    """

    tokens: int
    sinks: int
    groups: tuple[int, ...]
    copies: tuple[int, ...]

    @property
    def slots(self) -> int:
        """Number of tokens whose keys and values the cache holds."""
        return self.sinks + self.tokens

    def attend(
        self,
        queries: Tensor,
        entries: Tensor,
        slots: Tensor,
        places: Tensor,
        seen: tuple[Tensor, Tensor],
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        """Attend within the window after the cached tokens.

        Args:
            queries: of the new tokens, (B, L, heads, head_dim).
            entries: their keys and values, (B, L, KV heads, 2 head_dim).
            slots: the cached ones, (B, slots, KV heads, 2 head_dim).
            places: of the new tokens, (B, L); -1 is no place.
            seen: number of tokens before and after the new ones, (B, 1) each.
            dropout: of the weights.

        Returns:
            outputs (B, L, H * head_dim), and the slots after the new tokens.
        """
        columns = torch.cat([slots, entries], 1)
        column_places = torch.cat([self._slot_places(seen[0]), places], 1)
        slots, slot_places = self._choose(columns, column_places, seen[1])
        # sinks stand in front of every block; where they lie in the window too they must not count twice
        column_places = column_places.masked_fill(column_places < self.sinks, -1)
        first = slots[:, : self.sinks], slot_places[:, : self.sinks]
        last = columns[:, self.sinks :], column_places[:, self.sinks :]
        return self._attend_by_block((queries, places), first, last, dropout), slots

    def _attend_by_block(
        self,
        new: tuple[Tensor, Tensor],
        first: tuple[Tensor, Tensor],
        last: tuple[Tensor, Tensor],
        dropout: float,
    ) -> Tensor:
        """Attend from the new queries, block by block, to the first entries and to the last ones before each query.

        Args:
            new: queries (B, L, H, head_dim) and their places (B, L).
            first: the sinks' entries (B, sinks, KV heads, 2 head_dim) and places.
            last: entries (B, window + L, KV heads, 2 head_dim) of the window and of the new tokens, and their places.
            dropout: of the weights.

        Returns:
            outputs (B, L, H * head_dim).
        """
        length, size = new[0].shape[1], max(BLOCK, self.tokens)
        if not any_length(length, size) and length <= size:
            size = length
        own, near = (spans(length, size, width, new[1].device) for width in (size, self.tokens + size))
        queries, here = (at_spans(x, own, 1, behind) for x, behind in zip(new, (0, -1), strict=True))
        sinks = (x.unsqueeze(1).expand(-1, own.shape[0], *x.shape[1:]) for x in first)
        others = (at_spans(x, near, 1, behind) for x, behind in zip(last, (0, -1), strict=True))
        read, there = (torch.cat(parts, 2) for parts in zip(sinks, others, strict=True))
        blocks = (x.flatten(0, 1) for x in (queries, read, here, there))  # a block is a row of its own
        outputs = self._attend(blocks, dropout).unflatten(0, (queries.shape[0], own.shape[0]))
        return outputs.flatten(3).flatten(1, 2).index_select(1, torch.arange(length, device=own.device))

    def _attend(self, block: Iterable[Tensor], dropout: float) -> Tensor:
        """Attend from queries to entries, at the places `here` (B, Q) and `there` (B, K); -1 is no place."""
        queries, entries, here, there = block
        here, there = here.unsqueeze(-1), there.unsqueeze(1)
        visible = (there >= 0) & (there <= here) & ((there < self.sinks) | (there > here - self.tokens))
        visible = visible | (here < 0)  # padding sees anything: an empty row has no softmax
        keys, values = repeat_heads(entries.transpose(1, 2), self.copies).chunk(2, -1)
        mask = visible.unsqueeze(1)
        outputs = F.scaled_dot_product_attention(queries.transpose(1, 2), keys, values, mask, dropout_p=dropout)
        return outputs.transpose(1, 2).contiguous()

    def _slot_places(self, seen: Tensor) -> Tensor:
        """Return the place of the token in every slot (B, slots) after `seen` tokens (B, 1); -1 if empty."""
        sinks = torch.arange(self.sinks, device=seen.device)
        recent = seen + torch.arange(-self.tokens, 0, device=seen.device)
        empty = seen.new_full((), -1)
        return torch.cat([torch.where(sinks < seen, sinks, empty), torch.where(recent < self.sinks, empty, recent)], 1)

    def _choose(self, columns: Tensor, column_places: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the entries of the slots after `seen` tokens, and their places; empty slots hold anything."""
        places = self._slot_places(seen)
        chosen = (column_places.unsqueeze(1) == places.unsqueeze(-1)).to(torch.uint8).argmax(-1)
        return columns.gather(1, chosen[:, :, None, None].expand(-1, -1, *columns.shape[2:])), places


class WindowMixer(Mixer):
    """Attends to the last `window_tokens` tokens, the token itself among them, and to the first `sink_tokens`.

    The sinks are StreamingLLM's (arXiv 2309.17453). There are no parameters: queries, keys and values are the replaced
    heads' own, so it works without training. Unlike StreamingLLM, keys keep the rotation of their true places, as in
    the original model. With the config's `group_windows` every KV head has a window of its own; those of one size are
    computed together.

    The cache has a slot for each of the tokens, which holds its key and value. The number of tokens seen, which it
    holds for every row, tells which token is in which slot; padding counts as no token, wherever it stands.
    """

    reads_keys = True

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(config, layout, head_dim, layer_index)
        sizes = [config.window_tokens] * len(self.copies)
        if config.group_windows is not None:
            sizes = config.group_windows[layer_index]
        alike = {
            size: tuple(group for group, other in enumerate(sizes) if other == size) for size in sorted(set(sizes))
        }
        self.windows = [
            Window(size, config.sink_tokens, groups, tuple(self.copies[group] for group in groups))
            for size, groups in alike.items()
        ]
        self.query_spans = list(pairwise(accumulate(self.copies, initial=0)))
        self.dropout = config.attention_dropout

    def forward(self, values: Tensor, cache: Cache | None, padding_mask: Tensor | None, heads: ReplacedHeads) -> Tensor:
        """Attend within the windows; see `Mixer`."""
        before = self.previous(cache, "conv"), self.previous(cache, "recurrent")
        outputs, rows, seen = self.attend(values, *before, padding_mask, heads)
        if cache is not None:  # they push all older ones out of the cache
            cache.update_conv_state(rows, self.layer_index, conv_kernel_size=rows.shape[-1])
            cache.update_recurrent_state(seen, self.layer_index)
        return outputs

    def attend(
        self,
        values: Tensor,
        rows: Tensor | None,
        seen: Tensor | None,
        padding_mask: Tensor | None,
        heads: ReplacedHeads,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend within the windows after the cached tokens.

        Args:
            values: as of `Mixer`.
            rows: keys and values of the slots, see `_slots`; None at the beginning.
            seen: number of tokens seen, (B, 1); None at the beginning.
            padding_mask: as of `Mixer`.
            heads: as of `Mixer`.

        Returns:
            outputs (B, L, H * head_dim), and `rows` and `seen` after them.
        """
        queries, keys = (x.transpose(1, 2) for x in heads.rotated())  # (B, L, heads, head_dim)
        entries = torch.cat([keys, values.unflatten(2, (-1, self.head_dim))], -1)  # (B, L, KV heads, 2 head_dim)
        packing = None if padding_mask is None else Packing(padding_mask)
        if packing is not None:  # else padding would take the place of tokens in the window before a block
            queries, entries = (packing.pack(x.flatten(2)).unflatten(2, x.shape[2:]) for x in (queries, entries))
        if rows is None or seen is None:
            seen = entries.new_zeros(len(entries), 1, dtype=torch.long)
        places = seen + torch.arange(queries.shape[1], device=seen.device)  # of the new tokens, (B, L)
        if packing is not None:
            places = places.masked_fill(~packing.real, -1)
        after = seen + (queries.shape[1] if packing is None else packing.counts)
        dropout = self.dropout if self.training else 0.0
        outputs, kept = [], []
        for window, slots in zip(self.windows, self._slots(rows, entries), strict=True):
            own = self._of(window, queries, self.query_spans), self._of(window, entries, None)
            output, newest = window.attend(*own, slots, places, (seen, after), dropout)
            outputs.append(output)
            kept.append(newest)
        mixed = self._in_order(outputs).to(values.dtype)
        rows = kept[0].flatten(2).transpose(1, 2)
        if len(kept) > 1:
            rows = torch.cat([slots.flatten(1) for slots in kept], 1).unsqueeze(-1)
        return mixed if packing is None else packing.unpack(mixed), rows, after

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

    def _slots(self, rows: Tensor | None, entries: Tensor) -> list[Tensor]:
        """Return the cached keys and values of every window, (B, slots, KV heads, 2 head_dim); zeros before the first.

        Args:
            rows: of one window (B, features, slots), or more in front; of several all numbers side by side,
                (B, numbers, 1).
            entries: new ones (B, L, KV heads, 2 head_dim).
        """
        sizes = [(window.slots, len(window.groups), entries.shape[3]) for window in self.windows]
        if rows is None:
            return [entries.new_zeros(len(entries), *size) for size in sizes]
        if len(sizes) == 1:
            return [rows[..., -sizes[0][0] :].transpose(1, 2).unflatten(2, sizes[0][1:])]
        parts = rows[..., -1].split([prod(size) for size in sizes], 1)
        return [part.unflatten(1, size) for part, size in zip(parts, sizes, strict=True)]


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
        near, rows, seen = self.window.attend(values, self.previous(cache, "conv"), seen, padding_mask, heads)
        features, state = self.retain(values, state, padding_mask, heads)
        if cache is not None:
            cache.update_conv_state(rows, self.layer_index, conv_kernel_size=rows.shape[-1])
            cache.update_recurrent_state(torch.cat([seen.to(state.dtype), state.flatten(1)], 1), self.layer_index)
        return near + self.readout(torch.cat([near, features], -1))
