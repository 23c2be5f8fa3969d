"""The slow reference of an EvictingCache: the whole text at once, no cache, row by row over keys that are told.

What each token saw is recorded from the cache; keys and values are the model's own of the full text.
"""

from contextlib import contextmanager

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from recurformer.evict import evicting
from recurformer.evict.cache import EvictingLayer

TWIN = "eviction_twin"


def _row(query, keys, values, seen, chunk_start, mean, scaling):
    """One query head's output at one token: the tokens `seen`, and `mean` stands for all others before its chunk."""
    k, v = keys[seen], values[seen]
    scores = k @ query * scaling
    if mean:
        dropped = [place for place in range(chunk_start) if place not in seen]
        k_mean, v_mean = keys[dropped].mean(0), values[dropped].mean(0)
        extra = (k_mean @ query) * scaling + torch.tensor(float(len(dropped))).log()
        scores, v = torch.cat([scores, extra[None]]), torch.cat([v, v_mean[None]])
    return scores.softmax(0) @ v


def _attention(module, query, key, value, attention_mask, saw, scaling, **kwargs):
    groups = query.shape[1] // key.shape[1]
    output = torch.zeros_like(query)
    for (layer, sample, kv_head, token), (seen, chunk_start, mean) in saw.items():
        if layer != module.layer_idx:
            continue
        for head in range(kv_head * groups, (kv_head + 1) * groups):
            states = query[sample, head, token], key[sample, kv_head], value[sample, kv_head]
            output[sample, head, token] = _row(*states, seen, chunk_start, mean, scaling)
    return output.transpose(1, 2), None


AttentionInterface.register(TWIN, _attention)
AttentionMaskInterface.register(TWIN, sdpa_mask)


@contextmanager
def recording():
    """Record what every token sees: (layer, sample, KV head, token) -> tokens, first of its chunk, whether a mean."""
    saw, original = {}, EvictingLayer._context

    def context_of(self, *args):
        context = original(self, *args)
        new = context.queries.shape[3]
        for sample, slots in enumerate(context.positions.tolist()):
            for head, row in zip(context.heads, slots, strict=True):
                held, arrived = row[: len(row) - new], row[len(row) - new :]
                for index, token in enumerate(arrived):
                    seen = [slot for slot in [*held, *arrived[: index + 1]] if slot >= 0]
                    first = min(slot for slot in arrived if slot >= 0)
                    saw[context.layer, sample, head, token] = seen, first, any(slot < -1 for slot in held)
        return context

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvictingLayer, "_context", context_of)
        yield saw


def read_in_pieces(model, cache, pieces, attention_mask=None):
    """Logits of each piece of tokens (B, q), read one after the other through `cache` by the evicting model."""
    evicted, logits, read = evicting(model), [], 0
    with torch.no_grad():
        for piece in pieces:
            read += piece.shape[1]
            mask = None if attention_mask is None else attention_mask[:, :read]
            logits.append(evicted(piece, past_key_values=cache, attention_mask=mask).logits)
    return logits


def twin_logits(model, ids, saw):
    """Logits (B, L, vocabulary) of the whole text, where each token sees what `recording` recorded."""
    before = model.config._attn_implementation
    model.set_attn_implementation(TWIN)
    try:
        with torch.no_grad():
            return model(ids, use_cache=False, saw=saw).logits
    finally:
        model.set_attn_implementation(before)
