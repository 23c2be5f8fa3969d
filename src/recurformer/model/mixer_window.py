"""Softmax attention to the last tokens and to the first ones, alone or beside a recurrent state of all tokens."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache
from transformers import initialization as init

from .layout import HeadLayout
from .masks import Packing
from .mixer import Mixer, ReplacedHeads, any_length, at_spans, spans
from .mixers_state import Retention

BLOCK = 64  # least number of queries that are compared with their keys at once


class WindowMixer(Mixer):
    """Attends to the last `window_tokens` tokens, the token itself among them, and to the first `sink_tokens`.

    The sinks are StreamingLLM's (arXiv 2309.17453). There are no parameters: queries, keys and values are the replaced
    heads' own, so it works without training. Unlike StreamingLLM, keys keep the rotation of their true places, as in
    the original model.

    The cache has a slot for each of them, which holds its key and value. The number of tokens seen, which it holds for
    every row, tells which token is in which slot; padding counts as no token, wherever it stands.
    """

    reads_keys = True

    def __init__(self, config: Any, layout: HeadLayout, head_dim: int, layer_index: int):
        super().__init__(config, layout, head_dim, layer_index)
        self.window, self.sinks = config.window_tokens, config.sink_tokens
        self.dropout = config.attention_dropout

    def forward(self, values: Tensor, cache: Cache | None, padding_mask: Tensor | None, heads: ReplacedHeads) -> Tensor:
        """Attend within the window; see `Mixer`."""
        before = self.previous(cache, "conv"), self.previous(cache, "recurrent")
        outputs, rows, seen = self.attend(values, *before, padding_mask, heads)
        if cache is not None:
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
        """Attend within the window after the cached tokens.

        Args:
            values: as of `Mixer`.
            rows: keys and values of the slots, (B, features, sinks + window) or more in front; None at the beginning.
            seen: number of tokens seen, (B, 1); None at the beginning.
            padding_mask: as of `Mixer`.
            heads: as of `Mixer`.

        Returns:
            outputs (B, L, H * head_dim), and `rows` (B, features, sinks + window) and `seen` after them.
        """
        queries, keys = (x.transpose(1, 2) for x in heads.rotated())  # (B, L, heads, head_dim)
        entries = torch.cat([keys, values.unflatten(2, (-1, self.head_dim))], -1)  # (B, L, KV heads, 2 head_dim)
        packing = None if padding_mask is None else Packing(padding_mask)
        if packing is not None:  # else padding would take the place of tokens in the window before a block
            queries, entries = (packing.pack(x.flatten(2)).unflatten(2, x.shape[2:]) for x in (queries, entries))
        slots, seen = self._open(entries, rows, seen)
        places = seen + torch.arange(queries.shape[1], device=seen.device)  # of the new tokens, (B, L)
        if packing is not None:
            places = places.masked_fill(~packing.real, -1)
        columns = torch.cat([slots, entries], 1)
        column_places = torch.cat([self._slot_places(seen), places], 1)
        seen = seen + (queries.shape[1] if packing is None else packing.counts)
        slots, slot_places = self._choose(columns, column_places, seen)
        # sinks stand in front of every block; where they lie in the window too they must not count twice
        column_places = column_places.masked_fill(column_places < self.sinks, -1)
        outputs = self._attend_by_block(
            (queries, places),
            (slots[:, : self.sinks], slot_places[:, : self.sinks]),
            (columns[:, self.sinks :], column_places[:, self.sinks :]),
        ).to(values.dtype)
        # (B, features, sinks + window): they push all older ones out of the cache
        return outputs if packing is None else packing.unpack(outputs), slots.flatten(2).transpose(1, 2), seen

    def _attend_by_block(
        self, new: tuple[Tensor, Tensor], first: tuple[Tensor, Tensor], last: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Attend from the new queries, block by block, to the first entries and to the last ones before each query.

        Args:
            new: queries (B, L, H, head_dim) and their places (B, L).
            first: the sinks' entries (B, sinks, KV heads, 2 head_dim) and places.
            last: entries (B, window + L, KV heads, 2 head_dim) of the window and of the new tokens, and their places.

        Returns:
            outputs (B, L, H * head_dim).
        """
        length, size = new[0].shape[1], max(BLOCK, self.window)
        if not any_length(length, size) and length <= size:
            size = length
        own, near = (spans(length, size, width, new[1].device) for width in (size, self.window + size))
        queries, here = (at_spans(x, own, 1, behind) for x, behind in zip(new, (0, -1), strict=True))
        sinks = (x.unsqueeze(1).expand(-1, own.shape[0], *x.shape[1:]) for x in first)
        others = (at_spans(x, near, 1, behind) for x, behind in zip(last, (0, -1), strict=True))
        read, there = (torch.cat(parts, 2) for parts in zip(sinks, others, strict=True))
        blocks = (x.flatten(0, 1) for x in (queries, read, here, there))  # a block is a row of its own
        outputs = self._attend(*blocks).unflatten(0, (queries.shape[0], own.shape[0]))
        return outputs.flatten(3).flatten(1, 2).index_select(1, torch.arange(length, device=own.device))

    def _attend(self, queries: Tensor, entries: Tensor, here: Tensor, there: Tensor) -> Tensor:
        """Attend from queries at the places `here` (B, Q) to entries at `there` (B, K); -1 is no place."""
        here, there = here.unsqueeze(-1), there.unsqueeze(1)
        visible = (there >= 0) & (there <= here) & ((there < self.sinks) | (there > here - self.window))
        visible = visible | (here < 0)  # padding sees anything: an empty row has no softmax
        keys, values = self.repeat(entries.transpose(1, 2)).chunk(2, -1)
        dropout, mask = self.dropout if self.training else 0.0, visible.unsqueeze(1)
        outputs = F.scaled_dot_product_attention(queries.transpose(1, 2), keys, values, mask, dropout_p=dropout)
        return outputs.transpose(1, 2).contiguous()

    def _slot_places(self, seen: Tensor) -> Tensor:
        """Return the place of the token in every slot (B, sinks + window) after `seen` tokens (B, 1); -1 if empty."""
        sinks = torch.arange(self.sinks, device=seen.device)
        recent = seen + torch.arange(-self.window, 0, device=seen.device)
        empty = seen.new_full((), -1)
        return torch.cat([torch.where(sinks < seen, sinks, empty), torch.where(recent < self.sinks, empty, recent)], 1)

    def _choose(self, columns: Tensor, column_places: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the entries of the slots after `seen` tokens, and their places; empty slots hold anything."""
        places = self._slot_places(seen)
        chosen = (column_places.unsqueeze(1) == places.unsqueeze(-1)).to(torch.uint8).argmax(-1)
        return columns.gather(1, chosen[:, :, None, None].expand(-1, -1, *columns.shape[2:])), places

    def _open(self, entries: Tensor, rows: Tensor | None, seen: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the cached slots (B, sinks + window, KV heads, 2 head_dim) and the tokens seen (B, 1)."""
        size = self.sinks + self.window
        if rows is None or seen is None:
            empty = entries.new_zeros(len(entries), size, *entries.shape[2:])
            return empty, entries.new_zeros(len(entries), 1, dtype=torch.long)
        return rows[..., -size:].transpose(1, 2).unflatten(2, entries.shape[2:]), seen


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
