"""Measured scores of heads against whole attention matrices, and the samples that they are measured on."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from torch.nn import functional as F

from recurformer.data import IGNORED
from recurformer.data.backbones import byte_tokenizer, hash_tokenizer
from recurformer.heads import scores as scores_module
from recurformer.heads.attention import attending
from recurformer.heads.price import price
from recurformer.heads.probes import HashHopProbes, Reread, TextProbes, hidden_lookups, repeated_tokens
from recurformer.heads.scores import (
    GATE_PENALTY,
    GATE_RATE,
    gate_scores,
    look_back_scores,
    lookup_accuracy,
    reread_scores,
    retrieval_scores,
)
from recurformer.model.layout import sliding_layers
from recurformer.study import HashHopTask, HeadScores
from tests.model.tiny_models import HEADS, LAYERS, QUERY_HEADS, make_backbone, shared_converted, tokens

SAMPLES, LENGTH, WINDOW, SINKS = 2, 24, 6, 2
BACKBONES = {
    "llama_gqa_tied": {},
    "qwen2_gqa": {},
    "mistral_gqa": {"sliding_window": 10},
    "granite": {},
    "gemma3_text": {"final_logit_softcapping": 5.0},
}
PLACES = [(layer, head) for layer in range(LAYERS) for head in range(QUERY_HEADS)]


@pytest.fixture(params=BACKBONES)
def model(request):
    return make_backbone(request.param, **BACKBONES[request.param]).double()


@pytest.fixture
def samples():
    input_ids = tokens(SAMPLES, LENGTH)
    labels = input_ids.masked_fill(
        torch.rand(SAMPLES, LENGTH, generator=torch.Generator().manual_seed(3)) < 0.6, IGNORED
    )
    return input_ids, labels


@torch.no_grad()
def loss(model, input_ids, labels, **arguments) -> float:
    logits = model(input_ids, use_cache=False, **arguments).logits
    return float(F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))


def of_full_attention(model, expected):
    """Heads of layers with a sliding window have no score."""
    expected[sliding_layers(model.config)] = float("nan")
    return expected


def direct_retrieval(model, layer, head, samples) -> float:
    changed = deepcopy(model)
    width = changed.config.hidden_size // QUERY_HEADS
    changed.model.layers[layer].self_attn.o_proj.weight.data[:, head * width : (head + 1) * width] = 0
    return loss(model, *samples) - loss(changed, *samples)


def test_retrieval_is_the_loss_without_the_heads_output_weights(model, samples):
    scores = retrieval_scores(model, *samples, minimum_accuracy=0)
    expected = torch.tensor([direct_retrieval(model, *place, samples) for place in PLACES]).view(scores.shape)
    assert expected.std() > 0.01  # heads differ
    expected = of_full_attention(model, expected.double())
    torch.testing.assert_close(scores, expected, atol=1e-7, rtol=0, equal_nan=True)


@pytest.mark.parametrize("subject", ["llama_gqa_tied", "converted"])
def test_batches_of_samples_and_of_heads_change_no_score(subject, monkeypatch):
    """Losses are means: those of all samples are those of their parts, whichever heads are looked at together."""
    measure = partial(retrieval_scores, minimum_accuracy=0)
    model = shared_converted("llama_gqa_tied", "ragged") if subject == "converted" else make_backbone(subject)
    input_ids = tokens(3, LENGTH)
    together = measure(model, input_ids, input_ids)
    assert together[~together.isnan()].std() > 0.01
    for size in (1, 2, 3):
        monkeypatch.setattr(scores_module, "samples_per_batch", lambda device, count, size=size: size)
        parts = input_ids.split(size)
        apart = sum(measure(model, part, part) * len(part) for part in parts) / len(input_ids)
        torch.testing.assert_close(apart, together, atol=1e-5, rtol=0, equal_nan=True)


def test_the_model_is_left_as_it_was(samples):
    model = make_backbone("llama_mha").train()
    implementation = model.config._attn_implementation
    retrieval_scores(model, *samples, minimum_accuracy=0)
    assert model.training and model.config._attn_implementation == implementation
    assert not any(layer._forward_pre_hooks for layer in model.model.layers)


def test_layers_that_do_not_hand_their_attention_over_are_refused(samples):
    model = make_backbone("llama_mha")
    model.model.layers = make_backbone("llama_mha").model.layers  # they read another configuration
    with pytest.raises(ValueError, match="LlamaForCausalLM does not attend through transformers' attention interface"):
        retrieval_scores(model, *samples, minimum_accuracy=0)


def test_replaced_heads_of_a_converted_model_have_no_score(samples):
    scores = retrieval_scores(shared_converted("llama_gqa_tied", "mixed"), *samples, minimum_accuracy=0)
    missing = {(layer, head) for layer, heads in enumerate(HEADS["mixed"]) for head in heads}
    assert {tuple(place) for place in scores.isnan().nonzero().tolist()} == missing


def test_a_model_that_looks_nothing_up_is_refused(samples):
    model = make_backbone("llama_mha")
    input_ids, labels = samples
    with torch.no_grad():
        found = model(input_ids).logits[:, :-1].argmax(-1)
    asked = labels[:, 1:] != IGNORED
    right = float((found == labels[:, 1:])[asked].double().mean())
    assert lookup_accuracy(model, input_ids, labels) == right < 0.9
    with pytest.raises(ValueError, match=r"looks up \d+% of the values, below minimum_accuracy=0.9"):
        retrieval_scores(model, input_ids, labels, minimum_accuracy=0.9)
    with pytest.raises(ValueError, match="labels ask nothing"):
        retrieval_scores(model, input_ids, torch.full_like(labels, IGNORED), minimum_accuracy=0)


PERIOD = 70  # three periods are more than one block of query rows


@torch.no_grad()
def direct_share(model, input_ids, ahead) -> torch.Tensor:
    """Written down: every query after the first period, every earlier occurrence."""
    model.set_attn_implementation("eager")
    attentions = torch.stack(model(input_ids, output_attentions=True).attentions).double()  # (layers, B, H, L, L)
    shares = torch.zeros_like(attentions[:, :, :, 0, 0])
    for query in range(PERIOD, input_ids.shape[1]):
        for earlier in range(query % PERIOD, query, PERIOD):
            assert (input_ids[:, earlier] == input_ids[:, query]).all()
            shares += attentions[..., query, earlier + ahead]
    return shares.mean(1) / (input_ids.shape[1] - PERIOD)


@pytest.mark.parametrize("ahead", [0, 1])
def test_shares_are_those_of_the_whole_matrix(ahead):
    model = make_backbone("qwen2_gqa", vocab_size=len(byte_tokenizer()))
    input_ids, period = repeated_tokens(byte_tokenizer(), 2, PERIOD, 3, seed=0)
    scores = look_back_scores(model, input_ids, period, ahead)
    torch.testing.assert_close(-scores, direct_share(model, input_ids, ahead), atol=1e-6, rtol=0)


@torch.no_grad()
def test_the_most_attention_of_a_second_reading_is_that_of_the_whole_matrix(model):
    """Of the text's tokens but the first ones, by the queries of the second reading, of any head of the group."""
    text = tokens(SAMPLES, 90)
    texts = Reread(torch.cat([text, tokens(SAMPLES, 5), text[:, 1:]], 1), 90, 95)
    scores = reread_scores(model, texts, SINKS)
    model.set_attn_implementation("eager")
    attentions = torch.stack(model(texts.input_ids, output_attentions=True).attentions)  # (layers, B, H, L, L)
    groups = model.config.num_key_value_heads, QUERY_HEADS // model.config.num_key_value_heads
    most = attentions[..., 95:, SINKS:90].amax((1, 4, 3)).unflatten(1, groups).amax(-1).repeat_interleave(groups[1], 1)
    expected = of_full_attention(model, most.double())
    torch.testing.assert_close(-scores, expected, atol=1e-6, rtol=0, equal_nan=True)
    assert len(most.unique()) > 2


def test_gates_follow_the_gradient_of_what_they_keep(model, samples):
    """Against one model a gate, whose weights hold the mixture: the first step closes each gate by the rate or keeps it
    open, and two samples take turns.
    """
    input_ids, labels = samples
    near = torch.tensor([[i - j < WINDOW or j < SINKS for j in range(LENGTH)] for i in range(LENGTH)])
    group = QUERY_HEADS // model.config.num_key_value_heads

    def loss_of(gates, row):
        def attend(layer, query, key, value, mask, scaling):
            key, value = (states.repeat_interleave(query.shape[1] // key.shape[1], 1) for states in (key, value))
            seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() if mask is None else mask
            mixed = 0
            for part, visible in ((gates[layer], seen), (1 - gates[layer], seen & near)):
                weights = (query @ key.mT * scaling).masked_fill(~visible, float("-inf")).softmax(-1)
                mixed = mixed + part.repeat_interleave(group)[:, None, None] * (weights @ value)
            return mixed.transpose(1, 2)

        base = attending(model).base_model
        asked = labels[row, 1:] != IGNORED
        found, goal = (
            base(input_ids[row : row + 1], use_cache=False, attend=each).last_hidden_state[0, :-1][asked]
            for each in (attend, lambda _, query, key, value, mask, scaling: F.scaled_dot_product_attention(
                query, key, value, mask, is_causal=mask is None, scale=scaling, enable_gqa=True).transpose(1, 2))
        )  # fmt: skip
        return (found - goal).square().mean() + GATE_PENALTY * gates.mean()

    gates = torch.ones(LAYERS, model.config.num_key_value_heads, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.AdamW([gates], lr=GATE_RATE, weight_decay=0.0)
    for step in range(3):
        optimiser.zero_grad()
        loss_of(gates, step % SAMPLES).backward()
        optimiser.step()
        gates.data.clamp_(0, 1)
    scores = gate_scores(model, input_ids, labels, WINDOW, SINKS, steps=3)
    expected = of_full_attention(model, gates.detach().repeat_interleave(group, 1))
    torch.testing.assert_close(-scores, expected, atol=1e-5, rtol=0, equal_nan=True)


def test_gates_and_rereading_of_what_decides_nothing(samples):
    """Refused, or without a score."""
    model, converted = make_backbone("llama_gqa_tied"), shared_converted("llama_gqa_tied", "mixed")
    with pytest.raises(ValueError, match="window_tokens=22 and sink_tokens=2 hide nothing of 24 tokens"):
        gate_scores(model, *samples, 22, 2, steps=1)
    with pytest.raises(ValueError, match="gates: labels ask nothing of some sample"):
        gate_scores(model, samples[0], torch.full_like(samples[1], IGNORED), WINDOW, SINKS, steps=1)
    with pytest.raises(ValueError, match="gates: some heads of the model are replaced; score its heads before that"):
        gate_scores(converted, *samples, WINDOW, SINKS, steps=1)
    text = samples[0]
    scores = reread_scores(converted, Reread(text.repeat(1, 2), LENGTH, LENGTH), SINKS)
    assert all(scores[layer, heads].isnan().all() for layer, heads in enumerate(HEADS["mixed"]))
    assert not scores.isnan().all()


def distance_head(model, layer: int, head: int, distance: int) -> None:
    """Make one head attend to the token `distance` back: constant queries and keys that rotation aligns there."""
    attention, width = model.model.layers[layer].self_attn, model.config.hidden_size // QUERY_HEADS
    group = QUERY_HEADS // model.config.num_key_value_heads
    query = attention.q_proj, slice(head * width, (head + 1) * width)
    key = attention.k_proj, slice(head // group * width, (head // group + 1) * width)
    angles = model.model.rotary_emb.inv_freq * distance
    for (projection, rows), phase in ((query, torch.zeros_like(angles)), (key, angles)):
        projection.weight.data[rows] = 0
        projection.bias.data[rows] = 10 * torch.cat([phase.cos(), phase.sin()])


def test_a_constructed_induction_head_has_the_lowest_score():
    model = make_backbone("qwen2_gqa", vocab_size=len(byte_tokenizer()))
    input_ids, period = repeated_tokens(byte_tokenizer(), 4, 16, 2, seed=0)
    distance_head(model, 1, 2, period - 1)
    distance_head(model, 2, 4, period)
    echo, induction = (look_back_scores(model, input_ids, period, ahead) for ahead in (0, 1))
    assert divmod(int(induction.argmin()), QUERY_HEADS) == (1, 2) and induction.min() < -0.9
    assert divmod(int(echo.argmin()), QUERY_HEADS) == (2, 4) and echo.min() < -0.9


def test_samples_that_do_not_repeat_are_refused():
    with pytest.raises(ValueError, match="period=24 must be at least 2 and below the 24 tokens"):
        look_back_scores(make_backbone("llama_mha"), tokens(1, 24), 24, 0)


TEXTS = [f"fox {number} jumps over dog " * 9 for number in range(9)]


TASK = HashHopTask(vocabulary=64, chains=2, hops=4, pairs=8)


def make_probes(kind: str, seed: int):
    settings = HeadScores(samples=3, tokens=40, windows=2, window_tokens=8, repeated_tokens=30, repetitions=3)
    if kind == "text":
        return TextProbes(byte_tokenizer(), TEXTS, settings, seed)
    return HashHopProbes(hash_tokenizer(64), TASK, settings, seed)


@pytest.mark.parametrize("kind", ["text", "hashhop"])
def test_probes_depend_on_their_seed_only(kind):
    one, again, other = (make_probes(kind, seed) for seed in (1, 1, 2))
    for name in ("lookups", "hidden", "weighted", "reread", "repeats"):
        first = getattr(one, name)()[0]
        assert torch.equal(first, getattr(again, name)()[0]), name
        assert not torch.equal(first, getattr(other, name)()[0]), name


@pytest.mark.parametrize("begins", [False, True])
def test_what_is_scored_begins_as_the_tokenizer_begins_a_text(begins):
    """With BOS once, where the tokenizer itself puts one, and no score asks for it."""
    tokenizer = byte_tokenizer()
    if begins:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
        )
    probes = TextProbes(tokenizer, TEXTS, HeadScores(samples=3, tokens=40, windows=2, window_tokens=8), 0)
    for input_ids, labels in (probes.lookups(), probes.hidden()):
        places = (input_ids == tokenizer.bos_token_id).nonzero()[:, 1]
        assert places.tolist() == [0] * (len(input_ids) * begins)
        assert not (labels[:, 1:] == tokenizer.bos_token_id).any()


def test_repeats_are_different_ordinary_tokens():
    for probes, special in ((make_probes("text", 0), 3), (make_probes("hashhop", 0), 6)):
        input_ids, period = probes.repeats()
        assert len(set(input_ids[0, :period].tolist())) == period and input_ids.min() >= special
        assert torch.equal(input_ids[:, :period], input_ids[:, period : 2 * period])
    assert period == make_probes("hashhop", 0).lookups().input_ids.shape[1] // 3


def test_lines_are_hidden_in_the_text_and_asked_at_its_end():
    probes = make_probes("text", 0)
    text, (input_ids, labels) = probes.language(), probes.hidden()
    assert input_ids.shape == labels.shape == text.shape
    for window, sample, answers in zip(text.tolist(), input_ids.tolist(), labels.tolist(), strict=True):
        asked = [place for place, label in enumerate(answers) if label != IGNORED]
        assert len(asked) == probes.settings.questions
        for place in asked:
            assert answers[place] == sample[place]
            line = sample[place - 2 : place + 2]  # key, colon, value, end
            told = [at for at in range(asked[0] - 2) if sample[at : at + 4] == line]
            assert len(told) == 1
            del sample[told[0] : told[0] + 4]
            sample[told[0] : told[0]] = [None] * 4
        left = [token for token in sample[: asked[0] - 2] if token is not None]
        assert left == window[: len(left)] and len(left) == len(window) - 8 * len(asked)
    with pytest.raises(ValueError, match="4 lines and questions need more than the 32 tokens"):
        hidden_lookups(probes.tokenizer, text[:, :32], 4)


def test_a_group_is_scored_by_what_its_window_costs_in_text_with_lookups():
    model, probes = make_backbone("llama_gqa_tied", vocab_size=len(byte_tokenizer())), make_probes("text", 0)
    scores = scores_module.SCORES["price"](model, probes, probes.settings, None)
    input_ids, labels = probes.hidden()
    weights = torch.full(input_ids.shape, 1 / (input_ids.shape[1] - 1))
    weights[labels != IGNORED] += 0.5 / probes.settings.questions
    expected = -price(model, input_ids, [8], weights=weights, sink_tokens=1)[..., 0]
    torch.testing.assert_close(scores, expected.repeat_interleave(2, 1))


def test_hashes_in_letters_are_refused():
    probes = HashHopProbes(byte_tokenizer(), HashHopTask(form="text", characters=400), HeadScores(), 0)
    with pytest.raises(ValueError, match="task-form text: a model that reads text is measured on --articles"):
        probes.lookups()
