"""Measured scores against slow direct computations: weights set to zero, explicit masks, whole attention matrices."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from recurformer.data import IGNORED
from recurformer.heads import scores
from recurformer.heads.attention import attending
from recurformer.heads.scores import (
    lookup_accuracy,
    retrieval_scores,
    sensitivity_scores,
)
from recurformer.model.layout import sliding_layers
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


sensitivity_of_windows = partial(sensitivity_scores, window_tokens=WINDOW, sink_tokens=SINKS)


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


def direct_sensitivity(model, layer, head, samples) -> float:
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    near = torch.tensor([[i - j < WINDOW or j < SINKS for j in range(LENGTH)] for i in range(LENGTH)])

    def attend(index, query, key, value, mask, scaling):
        key, value = (states.repeat_interleave(query.shape[1] // key.shape[1], 1) for states in (key, value))
        visible = (seen if mask is None else mask).expand(len(query), QUERY_HEADS, LENGTH, LENGTH).clone()
        if index == layer:
            visible[:, head] &= near
        scores = (query @ key.mT * scaling).masked_fill(~visible, float("-inf"))
        return (scores.softmax(-1) @ value).transpose(1, 2)

    windowed = loss(attending(model), *samples, attend=attend)
    return loss(model, *samples) - windowed


def test_retrieval_is_the_loss_without_the_heads_output_weights(model, samples):
    scores = retrieval_scores(model, *samples, minimum_accuracy=0)
    expected = torch.tensor([direct_retrieval(model, *place, samples) for place in PLACES]).view(scores.shape)
    assert expected.std() > 0.01  # heads differ
    expected = of_full_attention(model, expected.double())
    torch.testing.assert_close(scores, expected, atol=1e-7, rtol=0, equal_nan=True)


@pytest.mark.parametrize("subject", ["llama_gqa_tied", "converted"])
@pytest.mark.parametrize("measure", [partial(retrieval_scores, minimum_accuracy=0), sensitivity_of_windows])
def test_batches_of_samples_and_of_heads_change_no_score(subject, measure, monkeypatch):
    """Losses are means: those of all samples are those of their parts, whichever heads are looked at together."""
    model = shared_converted("llama_gqa_tied", "ragged") if subject == "converted" else make_backbone(subject)
    input_ids = tokens(3, LENGTH)
    together = measure(model, input_ids, input_ids)
    assert together[~together.isnan()].std() > 0.01
    for size in (1, 2, 3):
        monkeypatch.setattr(scores, "samples_per_batch", lambda device, count, size=size: size)
        parts = input_ids.split(size)
        apart = sum(measure(model, part, part) * len(part) for part in parts) / len(input_ids)
        torch.testing.assert_close(apart, together, atol=1e-5, rtol=0, equal_nan=True)


def test_sensitivity_is_the_loss_under_an_explicit_mask(model, samples):
    input_ids, labels = samples
    scores = sensitivity_scores(model, input_ids, labels, WINDOW, SINKS)
    labels[:, : WINDOW + SINKS + 1] = IGNORED  # the window hides nothing from what predicts these
    expected = torch.tensor([direct_sensitivity(model, *place, samples) for place in PLACES]).view(scores.shape)
    assert expected.std() > 0.01
    expected = of_full_attention(model, expected.double())
    torch.testing.assert_close(scores, expected, atol=1e-7, rtol=0, equal_nan=True)


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


def test_a_window_over_everything_is_refused(samples):
    with pytest.raises(ValueError, match="window_tokens=20 and sink_tokens=4 hide nothing of 24 tokens"):
        sensitivity_scores(make_backbone("llama_mha"), *samples, 20, 4)
