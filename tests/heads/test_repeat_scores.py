"""Echo and induction scores, and the samples that all scores are measured on."""

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from recurformer.data.hashhop import byte_tokenizer, hash_tokenizer
from recurformer.heads.scores import (
    HashHopProbes,
    TextProbes,
    echo_scores,
    induction_scores,
    repeated_tokens,
)
from recurformer.study import HashHopTask, HeadScores
from tests.model.tiny_models import QUERY_HEADS, make_backbone, tokens

PERIOD = 70  # three periods are more than one block of query rows


@torch.no_grad()
def direct_share(model, input_ids, shift) -> torch.Tensor:
    """Written down: every query after the first period, every earlier occurrence."""
    model.set_attn_implementation("eager")
    attentions = torch.stack(model(input_ids, output_attentions=True).attentions).double()  # (layers, B, H, L, L)
    shares = torch.zeros_like(attentions[:, :, :, 0, 0])
    for query in range(PERIOD, input_ids.shape[1]):
        for earlier in range(query % PERIOD, query, PERIOD):
            assert (input_ids[:, earlier] == input_ids[:, query]).all()
            shares += attentions[..., query, earlier + shift]
    return shares.mean(1) / (input_ids.shape[1] - PERIOD)


@pytest.mark.parametrize(("measure", "shift"), [(echo_scores, 0), (induction_scores, 1)])
def test_shares_are_those_of_the_whole_matrix(measure, shift):
    model = make_backbone("qwen2_gqa", vocab_size=len(byte_tokenizer()))
    input_ids, period = repeated_tokens(byte_tokenizer(), 2, PERIOD, 3, seed=0)
    scores = measure(model, input_ids, period)
    torch.testing.assert_close(-scores, direct_share(model, input_ids, shift), atol=1e-6, rtol=0)


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
    echo, induction = echo_scores(model, input_ids, period), induction_scores(model, input_ids, period)
    assert divmod(int(induction.argmin()), QUERY_HEADS) == (1, 2) and induction.min() < -0.9
    assert divmod(int(echo.argmin()), QUERY_HEADS) == (2, 4) and echo.min() < -0.9


def test_samples_that_do_not_repeat_are_refused():
    with pytest.raises(ValueError, match="period=24 must be at least 2 and below the 24 tokens"):
        echo_scores(make_backbone("llama_mha"), tokens(1, 24), 24)


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
    for name in ("lookups", "language", "repeats"):
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
    for input_ids, labels in (probes.lookups(), probes.language()):
        places = (input_ids == tokenizer.bos_token_id).nonzero()[:, 1]
        assert places.tolist() == [0] * (len(input_ids) * begins)
        assert not (labels[:, 1:] == tokenizer.bos_token_id).any()


def test_repeats_are_different_ordinary_tokens():
    for probes, special in ((make_probes("text", 0), 3), (make_probes("hashhop", 0), 6)):
        input_ids, period = probes.repeats()
        assert len(set(input_ids[0, :period].tolist())) == period and input_ids.min() >= special
        assert torch.equal(input_ids[:, :period], input_ids[:, period : 2 * period])
    assert period == make_probes("hashhop", 0).lookups().input_ids.shape[1] // 3


def test_hashes_in_letters_are_refused():
    probes = HashHopProbes(byte_tokenizer(), HashHopTask(form="text", characters=400), HeadScores(), 0)
    with pytest.raises(ValueError, match="task-form text: a model that reads text is measured on --articles"):
        probes.lookups()
