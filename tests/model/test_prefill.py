"""Reading a prompt in pieces: any pieces, any padding, the same logits, in memory that does not grow with it."""

import pytest
import torch
from tiny_models import PAD, difference, make_converted, shared_converted, tokens
from transformers import DynamicCache, StaticCache

from recurformer.measure.peak import PeakMemory
from recurformer.model import masks, modeling

LENGTH, NEW = 11, 3
CACHES = {"dynamic": {}, "static": {"cache_implementation": "static", "disable_compile": True}}
some_models = pytest.mark.parametrize(
    ("backbone", "heads"),
    [("llama_mha", "mixed"), ("qwen2_gqa", "ragged"), ("llama_gqa_tied", "beta_one"), ("mistral_gqa", "mixed")],
)


def padded_prompt():
    """Rows with 0, 1 and 5 tokens of padding on the left."""
    ids, mask = tokens(3, LENGTH), torch.ones(3, LENGTH, dtype=torch.long)
    for row, padding in enumerate((0, 1, 5)):
        ids[row, :padding], mask[row, :padding] = PAD, 0
    return ids, mask


def generated_logits(model, **arguments):
    ids, mask = padded_prompt()
    result = model.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW, return_dict_in_generate=True,
        output_logits=True, **arguments,
    )  # fmt: skip
    return torch.stack(result.logits, 1)


def generated_in_pieces(model, size, kind):
    return generated_logits(model, prefill_chunk_size=size, **CACHES[kind])


@some_models
@pytest.mark.parametrize("kind", CACHES)
def test_every_size_of_piece_gives_the_same_logits(backbone, heads, kind):
    model = shared_converted(backbone, heads)
    expected = generated_logits(model)
    for size in range(1, LENGTH + 1):
        assert difference(generated_in_pieces(model, size, kind), expected) < 1e-4, size


@pytest.mark.parametrize("kind", CACHES)
def test_the_check_sees_padding_in_pieces_of_one_token(kind, monkeypatch):
    """The library's mask function takes every single token for a generated one."""
    model = shared_converted("llama_mha", "mixed")
    expected = generated_logits(model)
    looked = masks.recurrent_mask
    for module in (masks, modeling):
        monkeypatch.setattr(module, "recurrent_mask", lambda mask, n, cache: None if n == 1 else looked(mask, n, cache))
    assert difference(generated_in_pieces(model, 2, kind), expected) < 1e-4
    assert difference(generated_in_pieces(model, 1, kind), expected) > 1e-3


@some_models
@torch.no_grad()
def test_unequal_pieces_give_the_logits_of_every_token(backbone, heads):
    model, (ids, mask) = shared_converted(backbone, heads), padded_prompt()
    expected = model(ids, attention_mask=mask).logits[mask.bool()]
    for sizes in ((1, 10), (4, 1, 1, 5), (1,) * LENGTH, (10, 1)):
        for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=LENGTH)):
            pieces, seen = [], 0
            for piece in ids.split(sizes, 1):
                seen += piece.shape[1]
                pieces.append(model(piece, attention_mask=mask[:, :seen], past_key_values=cache, use_cache=True).logits)
            assert difference(torch.cat(pieces, 1)[mask.bool()], expected) < 1e-4, (sizes, type(cache))


@torch.no_grad()
def prefill_peak(model, length, piece):
    """Bytes alive at once beside the cache."""
    cache, ids = StaticCache(config=model.config, max_cache_len=length), tokens(1, length)
    model(ids[:, :1], past_key_values=cache)  # allocates the cache
    cache.reset()
    with PeakMemory() as memory:
        for part in ids.split(piece, 1):
            model(part, past_key_values=cache, logits_to_keep=1)
    return memory.peak


def test_memory_does_not_grow_with_the_prompt():
    model, piece = make_converted("llama_mha", "mixed").requires_grad_(False), 16
    in_pieces, at_once = (
        [prefill_peak(model, length, size) for length, size in ((512, a), (1024, b))]
        for a, b in ((piece, piece), (512, 1024))
    )
    assert in_pieces[1] - in_pieces[0] < 512 * piece * 8  # the mask of a piece over the keys so far
    assert at_once[1] - at_once[0] > 512 * 1000 and at_once[1] > 20 * in_pieces[1]
