"""Padding anywhere, a row that ends early, any pieces: every row of a batch is what it is alone."""

from functools import partial

import pytest
import torch
from tiny_models import PAD, difference, every_case, every_mixer, make_mixed, no_gradients, shared_mixed, tokens
from transformers import DynamicCache, StaticCache

import recurformer
from recurformer.model.masks import Packing

__all__ = ["no_gradients"]
LENGTH, TURN = 21, 11  # tokens of both turns, and of the first one
PLACES = {  # a row's padding
    "left": [*range(5)],
    "middle": [*range(12, 16)],
    "scattered": [0, 3, 4, 8, 12, 14, 19],
    "right of the first turn": [*range(7, TURN)],
    "the whole first turn": [*range(TURN)],
    "the whole second turn but one": [*range(TURN, LENGTH - 1)],
}
CUTS = {
    "at once": (LENGTH,),
    "two turns": (TURN, LENGTH - TURN),
    "pieces": (3, 1, 1, 6, 4, 1, 5),
    "steps": (*(1,) * 12, LENGTH - 12),  # longer than a window and its sinks
}
CACHES = {"dynamic": DynamicCache, "static": partial(StaticCache, max_cache_len=LENGTH)}
WAYS = [
    ("dynamic", "two turns"),
    ("dynamic", "pieces"),
    ("dynamic", "steps"),
    ("static", "two turns"),
    ("static", "pieces"),
]
pytestmark = pytest.mark.usefixtures("no_gradients")


def padded(*places, seed=0):
    """A row without padding and one with padding at each of these places; their mask, and positions of real tokens."""
    ids = tokens(1 + len(places), LENGTH, seed)
    mask = torch.ones_like(ids)
    for row, place in enumerate(places, 1):
        ids[row, PLACES.get(place, [])], mask[row, PLACES.get(place, [])] = PAD, 0
    return ids, mask, (mask.cumsum(1) - 1).clamp(min=0)


def alone(model, ids, mask):
    """Logits of each row's real tokens, of the row by itself."""
    return [
        model(row[real.bool()].unsqueeze(0), use_cache=False).logits[0] for row, real in zip(ids, mask, strict=True)
    ]


def in_pieces(model, ids, mask, positions, cuts, cache=None):
    """Logits of all tokens, read piece by piece."""
    cache, logits, seen = DynamicCache(config=model.config) if cache is None else cache, [], 0
    for piece in ids.split(cuts, 1):
        seen += piece.shape[1]
        places = None if positions is None else positions[:, seen - piece.shape[1] : seen]
        now = None if mask is None else mask[:, :seen]
        logits.append(model(piece, attention_mask=now, position_ids=places, past_key_values=cache).logits)
    return torch.cat(logits, 1)


def check(logits, mask, expected, what=""):
    for row, one in enumerate(expected):
        assert difference(logits[row][mask[row].bool()], one) < 1e-4, (what, row)


@every_case
def test_every_row_is_what_it_is_alone(mixer, backbone, heads):
    model = shared_mixed(mixer, backbone, heads)
    # a sliding window counts padding between tokens as tokens, in the library's models too
    sliding = "sliding_attention" in model.config.layer_types
    ids, mask, positions = padded(*(["left"] if sliding else PLACES))
    expected = alone(model, ids, mask)
    check(model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits, mask, expected, "no cache")
    for kind, name in WAYS:
        logits = in_pieces(model, ids, mask, positions, CUTS[name], CACHES[kind](config=model.config))
        check(logits, mask, expected, (kind, name))
    check(in_pieces(model, ids[:1], None, None, CUTS["pieces"]), mask, expected[:1], "no mask")
    check(in_pieces(model, ids[:2], mask[:2], None, CUTS["pieces"]), mask, expected[:2], "no positions")


@every_mixer
def test_positions_may_be_absent_or_shifted(mixer):
    model, (ids, mask, positions) = (
        shared_mixed(mixer, heads="ragged"),
        padded("left", "scattered", "the whole first turn"),
    )
    expected = alone(model, ids, mask)
    for given in (None, positions + 50):
        for cuts in (CUTS["at once"], CUTS["pieces"]):
            check(in_pieces(model, ids, mask, given, cuts), mask, expected)
    check(in_pieces(model, ids[:2], mask[:2], torch.arange(LENGTH).unsqueeze(0), CUTS["pieces"]), mask, expected[:2])


@every_mixer
@pytest.mark.parametrize("new_cache", CACHES.values(), ids=CACHES)
def test_a_mask_may_be_that_of_the_whole_prompt(mixer, new_cache):
    model, (ids, mask, positions) = shared_mixed(mixer), padded("scattered")
    cache, logits = new_cache(config=model.config), []
    for piece, places in zip(ids.split(4, 1), positions.split(4, 1), strict=True):
        logits.append(model(piece, attention_mask=mask, position_ids=places, past_key_values=cache).logits)
    check(torch.cat(logits, 1), mask, alone(model, ids, mask))


@every_mixer
@pytest.mark.parametrize("form", [torch.Tensor.bool, lambda mask: mask * 0.5, lambda mask: mask * -3])
def test_every_number_but_zero_is_a_token(mixer, form):
    """As in the library's models; a mixer must not multiply by it."""
    model, (ids, mask, positions) = shared_mixed(mixer, heads="ragged"), padded("scattered")
    check(in_pieces(model, ids, form(mask), positions, CUTS["pieces"]), mask, alone(model, ids, mask))


@every_mixer
def test_a_prefill_in_chunks_of_a_padded_prompt(mixer):
    model, (ids, mask, _), more = shared_mixed(mixer, heads="ragged"), padded("scattered"), tokens(2, 3, seed=4)
    whole = torch.cat([mask, torch.ones_like(more)], 1)
    positions = (whole.cumsum(1) - 1)[:, LENGTH:]
    expected = alone(model, torch.cat([ids, more], 1), whole)
    for chunk in (1, 4, LENGTH):
        read = recurformer.prefill(model, ids, chunk, 3 * mask)  # any number but zero is a token
        given = {"attention_mask": whole, "position_ids": positions, "past_key_values": read.past_key_values}
        logits = torch.cat([read.logits, model(more, **given).logits], 1)
        for row, one in enumerate(expected):
            assert difference(logits[row], one[-4:]) < 1e-4, chunk


@every_mixer
@torch.enable_grad()
def test_gradients_are_those_of_a_row_alone(mixer):
    model, (ids, mask, positions) = shared_mixed(mixer, heads="ragged"), padded("scattered")
    inputs, real = model.model.embed_tokens(ids).detach().requires_grad_(), mask[1].bool()
    logits = model(inputs_embeds=inputs, attention_mask=mask, position_ids=positions, use_cache=False).logits
    found = torch.autograd.grad(logits[1][real].square().sum(), inputs)[0][1]
    row = inputs[1:, real].detach().requires_grad_()
    expected = torch.autograd.grad(model(inputs_embeds=row, use_cache=False).logits.square().sum(), row)[0][0]
    assert difference(found[real], expected) < 1e-4 and not found[~real].any()


@every_mixer
@torch.enable_grad()
def test_padding_breaks_no_gradient(mixer):
    """Padding predicts the first real token after it; its embedding may be zero."""
    model = make_mixed(mixer, "llama_mha", "mixed")
    for place in ("left", "scattered", "right of the first turn"):
        ids, mask, _ = padded(place)
        # zeros in front of a row would stay zeros through all layers, whose norms then have large derivatives
        model.model.embed_tokens.weight.data[PAD] = 0.0 if mask[1, 0] else 0.3
        loss = model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100), use_cache=False).loss
        gradients = torch.autograd.grad(loss * 2**16, list(model.parameters()), allow_unused=True)
        assert max(float(gradient.abs().max()) for gradient in gradients if gradient is not None) < 2**16 * 1e4


def first_turn(model, ids, mask, **arguments):
    greedy = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    return model.generate(ids, attention_mask=mask, pad_token_id=PAD, **greedy | arguments)


def early_end(model, place):
    """Prompts, their mask, an end token that row 1 writes early and row 0 does not write, and how many tokens row 1 has
    then written.
    """
    for seed in range(20):
        ids, mask, _ = padded(place, seed=seed)
        written = first_turn(model, ids, mask).sequences[:, LENGTH:].tolist()
        for at, token in enumerate(written[1][:5]):
            if token not in written[0]:
                return ids, mask, token, at + 1
    pytest.fail("this model writes the same tokens in both rows, whatever they begin with")


@every_mixer
@pytest.mark.parametrize(
    ("backbone", "heads", "place"), [("llama_mha", "beta_one", ""), ("qwen2_gqa", "ragged", "scattered")]
)
def test_a_row_that_ends_early_goes_on_as_if_alone(mixer, backbone, heads, place):
    """Its padding enters no state: the next turn's logits and its greedy text are the row's own."""
    model = shared_mixed(mixer, backbone, heads)
    ids, mask, end, written = early_end(model, place)
    first = first_turn(model, ids, mask, eos_token_id=end)
    assert first.sequences[1, LENGTH + written :].eq(PAD).all() and first.sequences.shape[1] > LENGTH + written
    history = torch.cat([first.sequences, tokens(2, 4, seed=6)], 1)
    whole = torch.ones_like(history)
    whole[:, :LENGTH] = mask
    whole[1, LENGTH + written : first.sequences.shape[1]] = 0
    again = first_turn(model, history, whole, past_key_values=first.past_key_values)
    for row in range(2):
        single = history[row][whole[row].bool()].unsqueeze(0)
        expected = first_turn(model, single, torch.ones_like(single), use_cache=False)
        assert torch.equal(again.sequences[row, history.shape[1] :], expected.sequences[0, single.shape[1] :])
        assert difference(torch.stack(again.logits, 1)[row], torch.stack(expected.logits, 1)[0]) < 1e-4


def test_packing_is_undone_and_keeps_the_newest():
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]])
    rows = torch.arange(30.0).view(3, 5, 2)
    packing = Packing(mask)
    packed = packing.pack(rows)
    assert torch.equal(packing.unpack(packed), rows)
    assert packing.real.tolist() == [[True] * 5, [True, True, False, False, False], [False] * 5]
    assert packed[1, :2].tolist() == rows[1, [1, 3]].tolist()
    before = -torch.ones(3, 2, 4)
    assert packing.newest(packed, before, 3)[:, 0].tolist() == [[4, 6, 8], [-1, 12, 16], [-1, -1, -1]]
    assert packing.newest(packed, None, 6)[1, 0].tolist() == [0, 0, 0, 0, 12, 16]


@every_mixer
def test_padding_in_front_of_a_block_takes_no_place_in_it(mixer):
    model, ids, mask = shared_mixed(mixer, heads="ragged"), tokens(1, 130), torch.ones(1, 130, dtype=torch.long)
    ids[0, 60:71], mask[0, 60:71] = PAD, 0  # mixers read in blocks of 64 tokens
    logits = model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), use_cache=False).logits
    assert difference(logits[mask.bool()], *alone(model, ids, mask)) < 1e-4
