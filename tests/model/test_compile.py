"""Compiled code serves every length, with a cache and without, and equals what it was traced from."""

from itertools import pairwise

import pytest
import torch
from tiny_models import ALL, MAMBA, PAD, PAIRS, WINDOW, difference, make_backbone, tokens, without_zeros
from transformers import StaticCache

from recurformer.model.convert import convert
from recurformer.model.mixers import MIXERS

LENGTHS = (5, 64, 65, 130)  # on both sides of a block of 64


def make(mixer, heads):
    base = make_backbone("qwen2_gqa", num_hidden_layers=len(heads), max_position_embeddings=512)
    return without_zeros(convert(base, heads, mixer, **MAMBA | WINDOW)).requires_grad_(False)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["mamba", "window_state", "mean"])  # all kinds of state and of blocks
@torch.no_grad()
def test_compiled_code_serves_every_length(mixer):
    model, graphs = make(mixer, heads=([0],)), []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(model, backend=counted, fullgraph=True)  # past the limit of recompiling it raises
    for length in LENGTHS:
        ids = tokens(2, length + 9)
        expected = model(ids, use_cache=False).logits
        assert difference(compiled(ids, use_cache=False).logits, expected) < 1e-4
        cache = model(ids[:, :7], use_cache=True).past_key_values
        parts = [compiled(x, past_key_values=cache, use_cache=True).logits for x in ids[:, 7:].split([length, 1, 1], 1)]
        assert difference(torch.cat(parts, 1), expected[:, 7:]) < 1e-4
    # one token or several, within a block or beyond, one length or any, with a cache or without
    assert len(graphs) <= 6


def padded(length):
    ids, mask = tokens(2, length), torch.ones(2, length, dtype=torch.long)
    ids[0, :3], mask[0, :3] = PAD, 0
    return ids, mask


@pytest.mark.parametrize(("mixer", "heads"), [*((name, [0]) for name in MIXERS), ("mamba", ALL)])
@torch.no_grad()
def test_a_compiled_loop_fills_a_mask_of_full_length(mixer, heads):
    """Columns of later tokens follow those of the newest."""
    torch.compiler.reset()
    model, (ids, real) = make(mixer, [heads]), padded(12)
    compiled, cache = torch.compile(model, backend="eager"), StaticCache(config=model.config, max_cache_len=12)
    mask, logits = torch.zeros_like(real), []
    for start, stop in pairwise((0, 9, 10, 11, 12)):
        mask[:, :stop] = real[:, :stop]
        given = {"attention_mask": mask, "past_key_values": cache, "use_cache": True}
        logits.append((compiled if start else model)(ids[:, start:stop], **given).logits)
    expected = model(ids, attention_mask=real, use_cache=False).logits
    assert difference(torch.cat(logits, 1)[real.bool()], expected[real.bool()]) < 1e-4


@pytest.mark.parametrize("backbone", dict(PAIRS))
def test_every_family_compiles_into_one_graph(backbone):
    torch.compiler.reset()
    base = make_backbone(backbone, num_hidden_layers=1, layer_types=["full_attention"])
    model = convert(base, [[1, 3, 4, 5]], **MAMBA)
    compiled, (ids, mask) = torch.compile(model, fullgraph=True, backend="eager"), padded(12)
    given = {"attention_mask": mask, "use_cache": False}
    assert difference(compiled(ids, **given).logits[mask.bool()], model(ids, **given).logits[mask.bool()]) < 1e-6
