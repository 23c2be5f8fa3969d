"""What each method keeps, against its description computed the slow way."""

import math

import pytest
import torch

from recurformer.data.backbones import make_random
from recurformer.evict import EVICTIONS, make_cache, make_eviction
from recurformer.evict.methods import REPEATS, any_tokens, look_back, retrieval_heads
from recurformer.evict.pyramidinfer import PyramidInferOfficial, PyramidInferPaper
from recurformer.heads.probes import Repeated
from tests.evict.test_evicting_cache import held_slots, read_in_pieces
from tests.model.tiny_models import LAYERS, make_backbone, tokens

LENGTH, KEPT = 40, 16


@pytest.fixture(scope="module")
def model():
    return make_backbone("qwen2_gqa", attn_implementation="eager").requires_grad_(False)


@pytest.fixture(scope="module")
def attention(model):
    """Layers of one prompt's weights (KV heads, query heads of each, queries, keys)."""
    model.set_attn_implementation("eager")
    layers = model(tokens(1, LENGTH), output_attentions=True).attentions
    return [weights[0].unflatten(0, (model.config.num_key_value_heads, -1)) for weights in layers]


def held_after(model, method, *pieces, budget=KEPT):
    evicted = make_cache(model, method, budget)
    read_in_pieces(model, evicted, pieces or [tokens(1, LENGTH)])
    return held_slots(evicted)


def best(importance, protected):
    """The protected tokens and the most important others, KEPT in all."""
    others = sorted(set(range(len(importance))) - set(protected), key=lambda token: (-importance[token], -token))
    return sorted([*protected, *others[: KEPT - len(protected)]])


def test_streaming_llm_keeps_sinks_and_the_last(model):
    for heads in held_after(model, "streaming_llm", tokens(1, LENGTH), *tokens(1, 3, seed=1).split(1, 1)):
        assert all(slots == [0, 1, 2, 3, *range(LENGTH + 3 - 12, LENGTH + 3)] for slots in heads.values())


def test_h2o_keeps_heavy_hitters_and_the_last_half(model, attention):
    for weights, heads in zip(attention, held_after(model, "h2o"), strict=True):
        for head, slots in heads.items():
            assert slots == best(weights[head].mean(0).sum(0).tolist(), range(LENGTH - KEPT // 2, LENGTH))


def test_h2o_goes_on_adding_up_while_it_decodes(model, attention):
    """The first layer's keys do not depend on what was evicted, so its sums can be told from the stock model's."""
    text = torch.cat([tokens(1, LENGTH), tokens(1, 1, seed=1)], 1)
    held = held_after(model, "h2o", *text.split([LENGTH, 1], 1))[0]
    step = model(text, output_attentions=True).attentions[0][0, :, -1].unflatten(0, (len(held), -1))
    for head, slots in held.items():
        before = best(attention[0][head].mean(0).sum(0).tolist(), range(LENGTH - KEPT // 2, LENGTH))
        seen = torch.zeros(LENGTH + 1).index_fill(0, torch.tensor([*before, LENGTH]), 1)
        now = (step[head] * seen / (step[head] * seen).sum(-1, keepdim=True)).mean(0)
        sums = {token: now[token] + (attention[0][head].mean(0).sum(0)[token] if token < LENGTH else 0) for token in
                [*before, LENGTH]}  # fmt: skip
        leaves = min((token for token in sums if token <= LENGTH - KEPT // 2), key=lambda token: sums[token])
        assert slots == [token for token in sums if token != leaves]


def test_snapkv_keeps_what_its_window_attends_to(model, attention):
    window = KEPT // 2
    for weights, heads in zip(attention, held_after(model, "snapkv"), strict=True):
        for head, slots in heads.items():
            seen = weights[head][:, -window:, :-window].mean((0, 1))
            padded = torch.nn.functional.pad(seen, (6, 6))
            smooth = [float(padded[token : token + 13].mean()) for token in range(LENGTH - window)]
            assert slots == best([*smooth, *[0.0] * window], range(LENGTH - window, LENGTH))


def test_scissorhands_counts_weights_above_the_mean(model, attention):
    for weights, heads in zip(attention, held_after(model, "scissorhands"), strict=True):
        for head, slots in heads.items():
            above = weights[head] > 1 / torch.arange(1, LENGTH + 1)[:, None]
            assert slots == best(above.sum((0, 1)).tolist(), range(LENGTH - KEPT // 2, LENGTH))


def test_big_bird_keeps_random_tokens_that_do_not_come_back(model):
    pieces = [tokens(1, LENGTH), *tokens(1, 6, seed=1).split(1, 1)]
    first, last = (held_after(model, "big_bird", *pieces[:stop]) for stop in (1, len(pieces)))
    for before, after in zip(first, last, strict=True):
        for head in before:
            assert {0, 1, 2, 3, *range(LENGTH - 2, LENGTH + 6)} <= set(after[head])
            assert {slot for slot in after[head] if slot < LENGTH} <= set(before[head])
            assert len(after[head]) == KEPT
    assert len({str(slots) for heads in first for slots in heads.values()}) > 1
    assert first == held_after(model, "big_bird", pieces[0])


@pytest.mark.parametrize("method", [PyramidInferPaper, PyramidInferOfficial])
@pytest.mark.parametrize("budget", [0.25, 0.5, 0.75, 1.0, 300])
def test_pyramids_meet_the_budget_on_average(method, budget):
    length, layers = 1000, 30
    lengths = method(budget).lengths(length, layers)
    fraction = budget / length if isinstance(budget, int) else budget
    assert fraction - 1e-3 <= sum(lengths[:layers]) / (layers * length) <= fraction
    assert list(lengths) == sorted(lengths, reverse=True)
    assert lengths[0] == length


def test_pyramidinfer_paper_keeps_what_the_last_tokens_attend_to(model, attention):
    method = PyramidInferPaper(0.5)
    lengths = method.lengths(LENGTH, LAYERS)
    held = held_after(model, "pyramidinfer_paper", budget=0.5)
    for weights, heads, kept in zip(attention, held, lengths, strict=True):
        recent = max(int(kept * 0.2), 1)
        importance = weights[:, :, -recent:].mean((0, 1, 2))[: LENGTH - recent]
        wanted = sorted([*importance.topk(kept - recent).indices.tolist(), *range(LENGTH - recent, LENGTH)])
        assert all(slots == wanted for slots in heads.values())


def test_pyramidinfer_official_computes_no_keys_for_dropped_tokens(model, attention):
    came = []
    hook = model.model.layers[-1].self_attn.k_proj.register_forward_hook(lambda *_: came.append(_[2].shape[1]))
    held = held_after(model, "pyramidinfer_official", budget=0.75)
    hook.remove()
    assert came == [len(slots) for slots in held[-1].values()][:1]
    kept = PyramidInferOfficial(0.75).lengths(LENGTH, LAYERS)[2]
    assert came == [kept]
    recent = 1 + int(0.2 * LENGTH)
    # the first two layers see everything, so the stock model's weights tell what the second chooses
    judges = attention[1].flatten(0, 1).mean(0)[-recent:] * torch.linspace(1, 1.2, recent)[:, None]
    importance = judges.mean(0).index_fill(0, torch.arange(4), float("inf"))[: LENGTH - recent]
    wanted = sorted([*importance.topk(kept - recent).indices.tolist(), *range(LENGTH - recent, LENGTH)])
    assert all(slots == wanted for slots in held[-1].values())


def test_pyramidinfer_official_thins_out_blocks_that_are_no_longer_recent(model):
    evicted, recent = make_cache(model, "pyramidinfer_official", 0.75), 1 + int(0.2 * LENGTH)
    read_in_pieces(model, evicted, [tokens(1, LENGTH)])
    prompt = held_slots(evicted)
    read_in_pieces(model, evicted, tokens(1, recent + 15, seed=1).split(1, 1))
    assert [len(heads[0]) for heads in held_slots(evicted)] == [len(heads[0]) + recent + 15 for heads in prompt]
    read_in_pieces(model, evicted, tokens(1, 3, seed=2).split(1, 1))
    for layer, (before, after) in enumerate(zip(prompt, held_slots(evicted), strict=True)):
        stay = int(16 * 0.9 * (0.9 * (1 + math.cos(math.pi * layer / LAYERS)) / 2 + 0.1))
        assert after[0] == after[1]
        assert after[0][: len(before[0])] == before[0]
        assert len([slot for slot in after[0] if LENGTH <= slot < LENGTH + 16]) == stay
        assert after[0][-recent - 2 :] == list(range(LENGTH + 16, LENGTH + recent + 18))


def test_razor_attention_takes_the_query_head_that_looks_back_most(model):
    text, period = repeated = any_tokens(model.config.vocab_size)
    echo, induction = look_back(model, repeated)
    length = text.shape[1]
    assert length == REPEATS * period
    layers = model(text, output_attentions=True).attentions
    for layer, weights in enumerate(layers):
        for scores, ahead in ((echo, 0), (induction, 1)):
            total = torch.zeros(len(weights[0]))
            for query in range(period, length):
                copies = [query - back + ahead for back in range(period, query + 1, period)]
                total += weights[0, :, query, copies].sum(-1)
            expected = (total / (length - period)).unflatten(0, (len(scores[layer]), -1)).amax(1)
            assert torch.allclose(scores[layer].float(), expected, atol=1e-5)


def test_razor_attention_takes_one_head_in_fifteen_by_its_echo():
    echo, induction = torch.arange(60.0).view(6, 10), torch.arange(60.0).flip(0).view(6, 10)
    chosen = retrieval_heads(echo, induction, 15)
    assert chosen == (tuple(range(10)), (0, 1, 2, 3), (), (), (), (9,))


def test_razor_attention_judges_the_heads_by_the_tokens_that_it_is_given(model):
    given = Repeated(tokens(5, 11, seed=4).repeat(1, 3), 11)
    chosen = {count: retrieval_heads(*look_back(model, given), count) for count in range(1, 6)}
    whole = make_eviction(model, "razor_attention", 0.7, given).whole
    assert whole == chosen[sum(map(len, whole))] != make_eviction(model, "razor_attention", 0.7).whole


@pytest.mark.parametrize(("budget", "count"), [(0.25, 1), (0.5, 3), (0.75, 5), (1.0, 8)])
def test_razor_attention_keeps_as_many_heads_whole_as_the_budget_allows(budget, count):
    eight = make_random("llama", hidden_size=32, layers=2, heads=4, kv_heads=4, head_dim=8, vocab_size=64, seed=0)
    eviction = make_eviction(eight, "razor_attention", budget)
    assert sum(map(len, eviction.whole)) == count
    assert count + (8 - count) * eviction.local == pytest.approx(8 * budget)


def test_razor_attention_keeps_retrieval_heads_whole(model):
    evicted = make_cache(model, "razor_attention", 0.5)
    read_in_pieces(model, evicted, [tokens(1, LENGTH)])
    whole = evicted.eviction.whole
    assert 0 < sum(map(len, whole)) < LAYERS * model.config.num_key_value_heads
    for heads, retrieval in zip(held_slots(evicted), whole, strict=True):
        for head, slots in heads.items():
            if head in retrieval:
                assert slots == list(range(LENGTH))
            else:
                mean, *kept = slots
                assert -1 - mean == LENGTH - len(kept)
                sinks = min(len(kept) // 2, 4)
                assert kept == [*range(sinks), *range(LENGTH - len(kept) + sinks, LENGTH)]


def test_citrus_never_holds_more_than_its_chunk_and_its_budget(model, monkeypatch):
    seen = []
    original = EVICTIONS["citrus"].importance
    monkeypatch.setattr(
        EVICTIONS["citrus"],
        "importance",
        lambda self, context, kept: seen.append(context.keys.shape[2]) or original(self, context, kept),
    )
    monkeypatch.setattr(EVICTIONS["citrus"], "chunk", 10)
    held = held_after(model, "citrus", tokens(1, 95))
    assert max(seen) == KEPT + 10
    assert len(seen) == LAYERS * 8  # all but the first two of ten chunks, after which nothing has to go
    assert all(len(slots) == KEPT for heads in held for slots in heads.values())


def test_citrus_judges_by_an_end_that_has_read_later_chunks_in_the_layers_below(model, monkeypatch):
    """As its docstring says; the authors' code reads chunk by chunk."""
    judged, original = {}, EVICTIONS["citrus"].importance

    def importance(self, context, kept):
        found = original(self, context, kept)
        judged.setdefault(context.layer, found)  # after the second chunk, the first after which something has to go
        return found

    monkeypatch.setattr(EVICTIONS["citrus"], "importance", importance)
    monkeypatch.setattr(EVICTIONS["citrus"], "chunk", 32)
    prompt = tokens(1, 128)
    changed = prompt.clone()
    changed[0, 64:96] += 1  # the third of four chunks; the window lies in the last
    found = []
    for ids in (prompt, changed):
        judged.clear()
        held_after(model, "citrus", ids, budget=60)
        found.append(dict(judged))
    same = [torch.equal(found[0][layer], found[1][layer]) for layer in range(LAYERS)]
    assert same == [True] + [False] * (LAYERS - 1)
