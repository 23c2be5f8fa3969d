"""Prices of windows and bits against explicit masks and the divergence itself; the solver against every choice."""

from itertools import product

import pytest
import torch
from torch.nn import functional as F

from recurformer.heads import price as price_module
from recurformer.heads.attention import attending, causal_attention
from recurformer.heads.price import Keep, allocate, choices, key_centers, price
from recurformer.heads.scores import window_mask
from recurformer.model.packed import BITS, as_kept
from tests.model.tiny_models import LAYERS, make_backbone, shared_converted, tokens

LENGTH, SINKS = 150, 2  # more than one block of queries
WINDOWS = (5, 20, 140)
BACKBONES = ("llama_mha", "llama_gqa_tied", "qwen2_gqa", "granite", "gemma3_text")


def kept_attention(keep, layer, group, groups):
    """Attention with what one group keeps of its tokens, written out; of an `attending` model."""

    def attend(index, query, key, value, mask, scaling):
        output = causal_attention(query, key, value, mask, scaling)
        if index != layer:
            return output
        own = slice(group * query.shape[1] // groups, (group + 1) * query.shape[1] // groups)
        length = query.shape[2]
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        if keep.window is not None:
            seen = window_mask(length, keep.window, SINKS)
        key, value = as_kept(key, value, keep.bits)
        scores = (query[:, own] @ key[:, group : group + 1].mT * scaling).masked_fill(~seen, -torch.inf)
        changed = (scores.softmax(-1) @ value[:, group : group + 1]).transpose(1, 2)
        parts = (output[:, :, : own.start], changed, output[:, :, own.stop :])
        return torch.cat(parts, 2)

    return attend


def log_likelihoods(model, input_ids, attend=causal_attention):
    plain = attend is causal_attention
    call = (lambda index, *states: causal_attention(*states)) if plain else attend
    return attending(model)(input_ids, use_cache=False, attend=call).logits[:, :-1].log_softmax(-1)


def change_times_gradient(model, sample, layer, keep_attention, weights, draws):
    """Of one group's output, at every token; the gradient of words drawn at weighted places, by autograd."""
    outputs, changed = {}, []

    def attend(index, *states):
        outputs[index] = causal_attention(*states)
        return outputs[index]

    def attend_again(index, *states):
        if index == layer:
            changed.append(keep_attention(index, *states))
        return outputs[index]

    likely = log_likelihoods(model, sample[None], attend)[0]
    parts = weights.nonzero()[:, 0].split(price_module.WORDS)
    words = [price_module._drawn(likely[part].detach(), draws) for part in parts]
    drawn = torch.cat([likely[part].gather(1, word)[:, 0] for part, word in zip(parts, words, strict=True)])
    (gradient,) = torch.autograd.grad((drawn * weights[weights > 0].sqrt()).sum(), outputs[layer])
    log_likelihoods(model, sample[None], attend_again)
    return ((changed[0] - outputs[layer]) * gradient).sum((2, 3)).detach()


def of_single_change(model, input_ids, layer, group, keep, weights):
    """Half the square of the change times the gradient, the samples' mean."""
    attend, draws = (
        kept_attention(keep, layer, group, model.config.num_key_value_heads),
        torch.Generator().manual_seed(0),
    )
    squares = 0.0
    for sample, of_sample in zip(input_ids, weights, strict=True):  # token t is predicted at t - 1
        squares += float(change_times_gradient(model, sample, layer, attend, of_sample[1:], draws).square().sum())
    return squares / 2 / len(input_ids)


def written_out(model, input_ids, layer, group, kept, weights):
    """The costs of what is kept: that of the window and that of the bits."""
    arguments = model, input_ids, layer, group
    single = {
        keep: of_single_change(*arguments, keep, weights)
        for keep in {part for keep in kept for part in (Keep(keep.window), Keep(None, keep.bits))}
    }
    return torch.tensor([single[Keep(keep.window)] + single[Keep(None, keep.bits)] for keep in kept]).double()


@pytest.mark.parametrize("backbone", BACKBONES)
def test_prices_are_the_gradient_times_the_change_under_explicit_masks(backbone, monkeypatch):
    monkeypatch.setattr(price_module, "EVERY", 1)
    model, input_ids = make_backbone(backbone).double(), tokens(2, LENGTH)
    prices = price(model, input_ids, WINDOWS, BITS, sink_tokens=SINKS)
    kept = choices(WINDOWS, BITS)
    assert prices.shape == (LAYERS, model.config.num_key_value_heads, len(kept))
    for place in ((0, 0), (LAYERS - 1, 1)):
        expected = written_out(model, input_ids, *place, kept, torch.full(input_ids.shape, 1 / (LENGTH - 1)))
        assert expected[0] > 100 * expected[kept.index(Keep(140))]  # a window that hides little costs little
        torch.testing.assert_close(prices[place], expected, atol=1e-12, rtol=1e-7)
    sliding = [kind == "sliding_attention" for kind in getattr(model.config, "layer_types", None) or []]
    assert prices.isnan().all(-1).all(-1).tolist() == (sliding or [False] * LAYERS)


@pytest.mark.parametrize("changed", ["qwen2_gqa", "llama_mha"])
def test_prices_tell_the_divergence_of_single_changes(changed):
    """What is priced is real: the rank of the choices, and their size where they change little."""
    model, input_ids = make_backbone(changed, initializer_range=0.1).double(), tokens(48, 40)
    windows = (4, 10, 20, 36)
    prices = price(model, input_ids, windows, (16, 4), sink_tokens=SINKS)
    reference, groups, pairs = log_likelihoods(model, input_ids).detach(), model.config.num_key_value_heads, []
    for layer, group in product(range(LAYERS), range(groups)):
        for keep, estimate in zip(choices(windows, (16, 4)), prices[layer, group].tolist(), strict=True):
            with torch.no_grad():
                ours = log_likelihoods(model, input_ids, kept_attention(keep, layer, group, groups))
            pairs.append((estimate, float((reference.exp() * (reference - ours)).sum(-1).mean())))
    estimates, divergences = torch.tensor([pair for pair in pairs if pair[1] > 1e-9]).double().T
    ranks = torch.stack([x.argsort().argsort().double() for x in (estimates, divergences)])
    assert float(torch.corrcoef(ranks)[0, 1]) > 0.9
    assert 0.5 < float(estimates.sum() / divergences.sum()) < 2


def test_predictions_count_by_their_weights(monkeypatch):
    """As many in each row as it happens, in several chunks of words; windows in any order."""
    monkeypatch.setattr(price_module, "WORDS", 7)
    model, input_ids, draws = make_backbone("qwen2_gqa").double(), tokens(3, 60), torch.Generator().manual_seed(2)
    counted = torch.rand(3, 60, generator=draws) < torch.tensor([[0.1], [0.3], [0.6]])
    weights = counted * torch.rand(3, 60, generator=draws, dtype=torch.float64)
    prices = price(model, input_ids, [20, 5], weights=weights, sink_tokens=SINKS)
    expected = written_out(model, input_ids, 1, 0, choices([5, 20]), weights)
    torch.testing.assert_close(prices[1, 0], expected, atol=1e-12, rtol=1e-7)
    twice = price(model, input_ids, [20, 5], weights=2 * weights, sink_tokens=SINKS)
    torch.testing.assert_close(twice, 2 * prices, atol=1e-12, rtol=1e-5)  # norms compute in float32
    assert not torch.equal(prices, price(model, input_ids, [20, 5], weights=weights, sink_tokens=SINKS, seed=1))


def test_a_part_of_the_queries_stands_for_all_in_the_costs_of_bits(monkeypatch):
    """Answers that count much, always four tokens apart, are read each time; the mean over draws is the whole."""
    model, input_ids = make_backbone("qwen2_gqa").double(), tokens(1, LENGTH)
    weights = torch.full((1, LENGTH), 1 / LENGTH)
    weights[:, LENGTH - 17 :: 4] += 0.1
    sampled, draws = price_module._sampled, torch.Generator().manual_seed(0)
    parts = []
    for _ in range(40):
        monkeypatch.setattr(price_module, "_sampled", lambda counted, _: sampled(counted, draws))
        parts.append(price(model, input_ids, [], (8, 4), weights, sink_tokens=SINKS))
    monkeypatch.setattr(price_module, "EVERY", 1)
    every = price(model, input_ids, [], (8, 4), weights, sink_tokens=SINKS)
    drawn = torch.stack(parts)
    error = drawn.std(0) / len(parts) ** 0.5
    assert ((drawn.mean(0) - every).abs() < 4 * error).all() and (error > 0).all()
    assert (drawn.std(0) < every).all()  # no part misses the answers


def test_words_are_drawn_as_often_as_they_are_likely():
    likely = torch.tensor([0.0, 0.5, 0.2, 0.0, 0.3, 0.0]).log().expand(20_000, -1)
    drawn = price_module._drawn(likely, torch.Generator().manual_seed(0))
    shares = torch.bincount(drawn[:, 0], minlength=6) / len(drawn)
    torch.testing.assert_close(shares, likely[0].exp(), atol=0.02, rtol=0)
    assert shares[likely[0].isinf()].sum() == 0


def test_a_prediction_before_which_nothing_is_hidden_costs_nothing():
    model, input_ids = make_backbone("qwen2_gqa").double(), tokens(1, 60)
    for token, hidden in ((11, False), (12, True)):  # the token 11 is predicted at 10, which sees 1 + 10 tokens
        weights = torch.zeros(1, 60)
        weights[:, token] = 1
        cost = price(model, input_ids, [10], weights=weights, sink_tokens=1)[..., 0]
        assert bool((cost > 1e-9).any()) == hidden


def test_pricing_leaves_the_model_as_it_was():
    model, input_ids = make_backbone("llama_gqa_tied"), tokens(1, 40)
    before = model(input_ids).logits
    price(model.train(), input_ids, [8])
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert torch.equal(model.eval()(input_ids).logits, before)


@torch.no_grad()
def test_centers_are_mean_keys_and_lower_the_price_of_few_bits():
    model, input_ids = make_backbone("qwen2_gqa").double(), tokens(2, 80)  # Qwen2's keys have a bias
    keys = {}

    def attend(layer, query, key, value, mask, scaling):
        keys[layer] = key
        return causal_attention(query, key, value, mask, scaling)

    attending(model)(input_ids, use_cache=False, attend=attend)
    centers = key_centers(model, input_ids)
    torch.testing.assert_close(centers, torch.stack([keys[layer].mean((0, 2)) for layer in range(LAYERS)]))
    for layer in model.model.layers:
        layer.self_attn.k_proj.bias.add_(3.0)
    centers = key_centers(model, input_ids)
    plain, centred = (price(model, input_ids, [], (4,), centers=each).sum() for each in (None, centers))
    assert centred < 0.8 * plain


@pytest.mark.parametrize(
    ("keep", "size"),
    [
        (Keep(), 1000 * 2 * 64 * 2),
        (Keep(100), 104 * 2 * 64 * 2),
        (Keep(5000), 1000 * 2 * 64 * 2),
        (Keep(None, 8), 1000 * 2 * (64 + 2)),
        (Keep(124, 4), 128 * 2 * (32 + 2)),
    ],
)
def test_sizes_count_numbers_and_scales(keep, size):
    assert keep.bytes(1000, 64, sink_tokens=4) == size


@pytest.mark.parametrize("seed", range(6))
def test_allocation_is_the_best_of_all_choices(seed):
    """Of five groups with four choices, whose costs are far below a nat, and convex or not."""
    draws = torch.Generator().manual_seed(seed)
    costs = torch.rand(5, 4, generator=draws, dtype=torch.float64).pow(4) * 1e-4
    sizes = [1.0, 3.0, 4.5, 9.0]
    for budget in (5.0, 11.0, 23.5, 45.0):
        possible = [choice for choice in product(range(4), repeat=5) if sum(sizes[i] for i in choice) <= budget]
        best = min(sum(float(costs[group, i]) for group, i in enumerate(choice)) for choice in possible)
        chosen = allocate(costs, sizes, budget)
        assert sum(sizes[i] for i in chosen.tolist()) <= budget
        assert float(costs.gather(1, chosen[:, None]).sum()) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"windows": [0, 4]}, "windows"),
        ({"windows": [40]}, "below the 40 tokens"),
        ({"bits": [2]}, "16, 8, 6, 5, 4"),
        ({"weights": torch.zeros(1, 40)}, "nothing is predicted"),
        ({"weights": -torch.ones(1, 40)}, "at least 0"),
    ],
)
def test_what_cannot_be_priced_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        price(make_backbone("qwen2_gqa"), tokens(1, 40), **{"windows": [4], **arguments})


def test_converted_models_and_small_budgets_are_refused():
    with pytest.raises(ValueError, match="price the heads of its original"):
        price(shared_converted("llama_gqa_tied", "ragged"), tokens(1, 40), [4])
    with pytest.raises(ValueError, match="needs 4"):
        allocate(torch.zeros(2, 2, 3), [1, 2, 3], 3.9)
    with pytest.raises(ValueError, match="finite"):
        allocate(F.pad(torch.zeros(2, 2), (0, 1), value=float("nan")), [1, 2, 3], 9)
