"""Softmax attention to the last tokens and to the first ones, the sinks (StreamingLLM, arXiv 2309.17453).

It has no parameters: queries, keys and values are the replaced heads' own, so it works without training. Only the
tokens that it may still read are cached. Unlike StreamingLLM, keys keep the rotation of their true places, as in the
original model.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache

from .layout import HeadLayout
from .mixer_base import Mixer, ReplacedHeads, join

BLOCK = 64  # least number of queries that are compared with their keys at once


class WindowMixer(Mixer):
    """Attends to the last `window_tokens` tokens, the token itself among them, and to the first `sink_tokens`.

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
        queries, keys = heads.rotated()
        entries = torch.cat([keys, self.split(values)], -1)  # (B, KV heads, L, 2 head_dim)
        real = torch.ones_like(values[..., 0], dtype=torch.bool) if padding_mask is None else padding_mask.bool()
        slots, seen = self._open(entries, cache)
        places = (seen + real.cumsum(-1) - 1).masked_fill(~real, -1)  # of the new tokens, (B, L)
        columns = torch.cat([slots, entries], 2)
        column_places = torch.cat([self._slot_places(seen), places], 1)
        seen = seen + real.sum(-1, keepdim=True)
        slots, slot_places = self._choose(columns, column_places, seen)
        if cache is not None:
            self._store(slots, seen, cache)
        # sinks stand in front of every block; where they lie in the window too they must not count twice
        column_places = column_places.masked_fill(column_places < self.sinks, -1)
        outputs, size = [], max(BLOCK, self.window)
        for start in range(0, queries.shape[2], size):
            stop = min(start + size, queries.shape[2])
            near = slice(self.sinks + start, self.sinks + self.window + stop)  # the block and the window before it
            there = torch.cat([slot_places[:, : self.sinks], column_places[:, near]], 1)
            read = torch.cat([slots[:, :, : self.sinks], columns[:, :, near]], 2)
            outputs.append(self._attend(queries[:, :, start:stop], read, places[:, start:stop], there))
        return join(torch.cat(outputs, 2), values.dtype)

    def _attend(self, queries: Tensor, entries: Tensor, here: Tensor, there: Tensor) -> Tensor:
        """Attend from queries at the places `here` (B, Q) to entries at `there` (B, K); -1 is no place."""
        here, there = here.unsqueeze(-1), there.unsqueeze(1)
        visible = (there >= 0) & (there <= here) & ((there < self.sinks) | (there > here - self.window))
        visible = visible | (here < 0)  # padding sees anything: an empty row has no softmax
        keys, values = self.repeat(entries).chunk(2, -1)
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(queries, keys, values, visible.unsqueeze(1), dropout_p=dropout)

    def _slot_places(self, seen: Tensor) -> Tensor:
        """Return the place of the token in every slot (B, sinks + window) after `seen` tokens (B, 1); -1 if empty."""
        sinks = torch.arange(self.sinks, device=seen.device)
        recent = seen + torch.arange(-self.window, 0, device=seen.device)
        empty = seen.new_full((), -1)
        return torch.cat([torch.where(sinks < seen, sinks, empty), torch.where(recent < self.sinks, empty, recent)], 1)

    def _choose(self, columns: Tensor, column_places: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return what belongs into the slots after `seen` tokens, and its places; empty slots hold anything."""
        places = self._slot_places(seen)
        found = (column_places.unsqueeze(1) == places.unsqueeze(-1)).to(torch.uint8).argmax(-1)
        return columns.gather(2, found[:, None, :, None].expand(-1, columns.shape[1], -1, columns.shape[3])), places

    def _open(self, entries: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Return the cached slots (B, KV heads, sinks + window, 2 head_dim) and the tokens seen (B, 1)."""
        batch, kv_heads, _, features = entries.shape
        size = self.sinks + self.window
        slots, seen = self.previous(cache, "conv"), self.previous(cache, "recurrent")
        if slots is None or seen is None:
            return entries.new_zeros(batch, kv_heads, size, features), entries.new_zeros(batch, 1, dtype=torch.long)
        return slots[..., -size:].unflatten(1, (kv_heads, features)).transpose(2, 3), seen

    def _store(self, slots: Tensor, seen: Tensor, cache: Cache) -> None:
        rows = slots.transpose(2, 3).flatten(1, 2)  # (B, features, sinks + window): they push all older ones out
        cache.update_conv_state(rows, self.layer_index, conv_kernel_size=rows.shape[-1])
        cache.update_recurrent_state(seen, self.layer_index)
