"""Softmax attention of some heads to the last tokens and to the first ones, and the slots that hold these."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .mixer import any_length, at_spans, repeat_heads, spans
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
        if alone and not torch.compiler.is_compiling():
            mixed = self.attend_from_beginning(queries, read[:, held:], dropout)
        else:
            mixed = self._attend_by_block(
                (queries, places),
                (read.gather(1, first.expand(-1, -1, *read.shape[2:])), slot_places[:, : self.sinks]),
                (read[:, last], column_places[:, last]),
                even,
                dropout,
            )  # (B, L, H, head_dim)
        if packs:
            mixed = hadamard(mixed).to(dtype)
        return mixed.flatten(2), columns.gather(1, chosen.expand(-1, -1, *columns.shape[2:]))

    def attend_from_beginning(self, queries: Tensor, entries: Tensor, dropout: float) -> Tensor:
        """Attend within the window of an input's first tokens, none of them padding.

        Args:
            queries: (B, L, heads, head_dim).
            entries: their keys and values as they are kept, (B, L, KV heads, 2 head_dim).
            dropout: of the weights.

        Returns:
            outputs (B, L, heads, head_dim).
        """
        # at first the window hides nothing but what comes later, which needs no mask
        head = min(self.tokens, queries.shape[1])
        mixed = self._attend(queries[:, :head], entries[:, :head], None, dropout)
        if head == queries.shape[1]:
            return mixed
        places = torch.arange(queries.shape[1], device=queries.device).expand(len(queries), -1)
        rest = self._attend_by_block(
            (queries[:, head:], places[:, head:]),
            (entries[:, : self.sinks], places[:, : self.sinks]),
            (entries, places.masked_fill(places < self.sinks, -1)),
            True,
            dropout,
        )
        return torch.cat([mixed, rest], 1)

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
            return self._attend(new[0], read, self._visible(new[1], there), dropout)
        own, near = (spans(length, size, width, new[1].device) for width in (size, self.tokens + size))
        near = near + (last[1].shape[1] - length - self.tokens)  # negative before the first of them
        queries, here = (at_spans(x, own, 1, beyond) for x, beyond in zip(new, (0, -1), strict=True))
        sinks = (x.unsqueeze(1).expand(-1, own.shape[0], *x.shape[1:]) for x in first)
        others = (at_spans(x, near, 1, beyond) for x, beyond in zip(last, (0, -1), strict=True))
        read, there = (torch.cat(parts, 2) for parts in zip(sinks, others, strict=True))
        shape = queries.shape[:2]
        queries, read, here, there = (x.flatten(0, 1) for x in (queries, read, here, there))  # a block is its own row
        outputs = self._attend(queries, read, self._visible(here, there), dropout).unflatten(0, shape)
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

    def _visible(self, here: Tensor, there: Tensor) -> Tensor:
        """Return which of the entries at places `there` (B, K) queries at `here` (B, Q) see, (B, 1, Q, K).

        -1 is no place.
        """
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
