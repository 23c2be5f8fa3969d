import math
from collections import Counter
from copy import deepcopy
from itertools import pairwise, product

import pandas as pd
import pytest
import torch
from caches import sliding_cache

from recurformer.data.windows import windows
from recurformer.measure import language
from recurformer.measure.cache import count_cache
from recurformer.measure.language import (
    continuation_rows,
    expected_by,
    perplexity,
    perplexity_rows,
    recalled,
    write_on,
    written_rows,
)

TEXTS = ["the quick brown fox jumps over the lazy dog.", "a b c", "0123456789 0123456789", "z" * 61]


@pytest.fixture
def articles():
    return pd.DataFrame(
        {"title": ["fox", "abc", "digits", "zzz"], "text": TEXTS, "split": ["validation"] * 3 + ["train"]}
    )


def by_hand(model, ids, prefix, tokens):
    """Window by window, token by token, in float64, from the full distribution."""
    fresh = tokens - len(prefix)
    total, count = 0.0, 0
    for start in range(0, len(ids), fresh):
        window = prefix + ids[start : start + fresh]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([window])).logits[0].double()
        for place in range(1, len(window)):
            scores = logits[place - 1].tolist()
            total -= scores[window[place]] - math.log(sum(math.exp(score) for score in scores))
            count += 1
    return count, total


@pytest.mark.parametrize(("bos", "tokens"), [(True, 8), (False, 20), (True, 100), (False, 100)])
def test_against_a_hand_computation(model, make_tokenizer, articles, bos, tokens):
    tokenizer = make_tokenizer()
    rows = perplexity_rows(model, tokenizer, articles, tokens=tokens, bos=bos)
    assert list(rows.columns) == ["split", "article", "tokens", "negative_log_likelihood"]
    assert rows.article.tolist() == ["fox", "abc", "digits", "zzz"]
    total, count = 0.0, 0
    for row, text in zip(rows.itertuples(), TEXTS, strict=True):
        ids = tokenizer(text, add_special_tokens=False).input_ids
        expected_count, expected = by_hand(model, ids, [1] if bos else [], tokens)
        assert row.tokens == expected_count
        assert row.negative_log_likelihood == pytest.approx(expected, rel=1e-5)
        assert row.tokens == (len(text) if bos else len(text) - math.ceil(len(text) / tokens))
        total, count = total + expected, count + expected_count
    assert perplexity(rows) == pytest.approx(math.exp(total / count), rel=1e-5)


@pytest.mark.parametrize("bos", [True, False])
def test_batch_size_and_padding_change_nothing(model, make_tokenizer, articles, bos):
    """Windows of different lengths share batches, so that some are padded."""
    single = perplexity_rows(model, make_tokenizer(), articles, tokens=16, bos=bos, batch_size=1)
    for batch_size in (2, 3, None):
        batched = perplexity_rows(model, make_tokenizer(), articles, tokens=16, bos=bos, batch_size=batch_size)
        pd.testing.assert_frame_equal(single, batched, rtol=1e-5, atol=1e-4)


def test_the_beginning_is_the_tokenizers_own_unless_said(model, make_tokenizer, articles):
    """Negative control inside: the two readings differ, so a dropped or doubled token would be seen."""
    plain, llama = make_tokenizer(begins=False), make_tokenizer(begins=True)
    with_bos = perplexity_rows(model, plain, articles, tokens=16, bos=True)
    without = perplexity_rows(model, plain, articles, tokens=16, bos=False)
    assert perplexity(with_bos) != pytest.approx(perplexity(without), rel=1e-3)
    pd.testing.assert_frame_equal(perplexity_rows(model, plain, articles, tokens=16), without)
    pd.testing.assert_frame_equal(perplexity_rows(model, llama, articles, tokens=16), with_bos)
    pd.testing.assert_frame_equal(perplexity_rows(model, llama, articles, tokens=16, bos=False), without)


def test_a_limit_of_windows_takes_the_beginning(model, make_tokenizer, articles):
    rows = perplexity_rows(model, make_tokenizer(), articles, tokens=5, bos=False, windows=2)
    cut = articles.assign(text=[text[:10] for text in TEXTS])
    pd.testing.assert_frame_equal(rows, perplexity_rows(model, make_tokenizer(), cut, tokens=5, bos=False))
    assert rows.tokens.tolist() == [8, 4, 8, 8]


def test_wrong_input_is_refused(model, make_tokenizer, articles):
    with pytest.raises(ValueError, match=r"^tokens: a window of 1 has nothing to predict; give at least 2$"):
        perplexity_rows(model, make_tokenizer(), articles, tokens=1)
    with pytest.raises(ValueError, match=r"^article 'empty': too short, no token of it can be predicted$"):
        perplexity_rows(model, make_tokenizer(), pd.DataFrame({"title": ["empty"], "text": ["x"]}), tokens=8, bos=False)
    with pytest.raises(ValueError, match=r"^bos: the tokenizer has no beginning-of-sequence token; set bos to false$"):
        perplexity_rows(model, make_tokenizer(bos=False), articles, tokens=8, bos=True)


TEXT = "the quick brown fox jumps over the lazy dog. " * 3
WINDOWS, PROMPT, TOKENS = 5, 30, 70


@pytest.fixture
def input_ids():
    return torch.randint(4, 128, (WINDOWS, PROMPT + TOKENS), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def one_shot(model, input_ids):
    """Of each token after the prompt, from one pass over the window."""
    logits = model(input_ids=input_ids, use_cache=False).logits.double()
    losses = -logits.log_softmax(-1)[:, :-1].gather(2, input_ids[:, 1:, None])[..., 0]
    return losses[:, PROMPT - 1 :]  # (windows, tokens)


def measured(model, input_ids, prompt, **options):
    """The model beside itself."""
    expected = expected_by(model, input_ids, prompt)
    return continuation_rows(model, model.config, input_ids, expected, prompt=prompt, **options)


def test_a_full_cache_gives_what_one_pass_gives(model, input_ids):
    rows = measured(model, input_ids, prompt=PROMPT)
    assert list(rows.columns) == [*language.COLUMNS, "ratio"]
    assert not rows.recalled.any() and not rows.recalled_likelihood.any()
    assert rows.window.tolist() == [window for window in range(WINDOWS) for _ in range(3)]
    assert rows.position.tolist() == [0, 32, 64] * WINDOWS
    assert rows.tokens.tolist() == [32, 32, 6] * WINDOWS
    bins = [part.sum().item() for window in one_shot(model, input_ids) for part in window.split(32)]
    assert rows.negative_log_likelihood.tolist() == pytest.approx(bins, rel=1e-5)
    assert rows.divergence.abs().max() < 1e-4


def test_recalled_tokens_are_rare_pairs_that_stood_far_back_and_not_since(model):
    """Against a search through each window; the marked tokens' losses are those of one pass."""
    ids = torch.randint(4, 24, (WINDOWS, PROMPT + TOKENS), generator=torch.Generator().manual_seed(1))
    texts = [ids[0, :30].tolist() * 5, ids[1, :50].tolist()]
    marks, counts = recalled(ids, texts), Counter(pair for text in texts for pair in pairwise(text))
    for window, place in product(range(WINDOWS), range(1, PROMPT + TOKENS)):
        pair = tuple(ids[window, place - 1 : place + 1].tolist())
        before = [at for at in range(1, place) if tuple(ids[window, at - 1 : at + 1].tolist()) == pair]
        assert marks[window, place] == (bool(before) and place - before[-1] >= 64 and counts[pair] <= 4)
    assert marks.sum() > 5 and not marks[:, 0].any() and max(counts.values()) > language.RARE
    rows = measured(model, ids, prompt=PROMPT, recalled=marks)
    after = marks[:, PROMPT:]
    bins = [part.sum().item() for window in one_shot(model, ids) * after for part in window.split(32)]
    assert rows.recalled_likelihood.tolist() == pytest.approx(bins, rel=1e-5)
    assert rows.recalled.tolist() == [part.sum().item() for window in after for part in window.split(32)]


@torch.no_grad()
def test_the_divergence_is_that_of_whole_passes(model, input_ids, monkeypatch):
    changed = deepcopy(model)
    changed.get_input_embeddings().weight.mul_(1.5)
    expected = expected_by(model, input_ids, PROMPT)
    rows = continuation_rows(changed, model.config, input_ids, expected, prompt=PROMPT)
    assert expected(0, 8) is expected(0, 8)
    monkeypatch.setattr(language, "LOGITS", 1)
    pd.testing.assert_frame_equal(
        rows, continuation_rows(changed, model.config, input_ids, expected_by(model, input_ids, PROMPT), prompt=PROMPT)
    )
    p, q = (each(input_ids=input_ids, use_cache=False).logits.double().log_softmax(-1) for each in (model, changed))
    distances = (p.exp() * (p - q)).sum(-1)[:, PROMPT - 1 : -1]
    bins = [part.sum().item() for window in distances for part in window.split(32)]
    assert rows.divergence.tolist() == pytest.approx(bins, rel=1e-3) and min(bins) > 1e-3


@pytest.mark.parametrize("begins", [False, True])
def test_it_is_the_perplexity_stage_s_likelihood(model, make_tokenizer, begins):
    """The same tokens, after the same beginning: a prompt of one token leaves nothing but the window's first."""
    tokenizer = make_tokenizer(begins=begins)
    ids = windows([TEXT], tokenizer, 90, 1)
    assert (ids[0, 0] == 1) == begins
    rows = measured(model, ids, prompt=1)
    articles = pd.DataFrame({"title": ["fox"], "text": [TEXT]})
    whole = perplexity_rows(model, tokenizer, articles, tokens=90, windows=1)
    assert rows.tokens.sum() == whole.tokens.item() == 89
    assert rows.negative_log_likelihood.sum() == pytest.approx(whole.negative_log_likelihood.item(), rel=1e-5)
    other = perplexity_rows(model, tokenizer, articles, tokens=90, windows=1, bos=not begins)
    assert rows.negative_log_likelihood.sum() != pytest.approx(other.negative_log_likelihood.item(), rel=1e-3)


def test_batches_change_nothing(model, input_ids):
    single = measured(model, input_ids, prompt=PROMPT, batch_size=1)
    for batch_size in (2, 5, 8):
        batched = measured(model, input_ids, prompt=PROMPT, batch_size=batch_size)
        pd.testing.assert_frame_equal(single, batched, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("model", ["llama"], indirect=True)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_given_cache_is_used_token_by_token(model, input_ids, batch_size):
    """A cache of all tokens changes nothing; one of the last 20 gives what a model sees that looks no further back."""
    whole = measured(model, input_ids, prompt=PROMPT, new_cache=lambda: sliding_cache(model, 200))
    pd.testing.assert_frame_equal(whole, measured(model, input_ids, prompt=PROMPT), rtol=1e-5, atol=1e-4)
    steps = []
    hook = model.register_forward_hook(
        lambda module, args, kwargs, output: steps.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    small = measured(model, input_ids, prompt=PROMPT, batch_size=batch_size, new_cache=lambda: sliding_cache(model, 20))
    hook.remove()
    by_original, by_small = [PROMPT, TOKENS - 1], [PROMPT] + [1] * (TOKENS - 1)
    assert steps == (by_small + by_original) * (WINDOWS // batch_size)
    assert small.ratio.tolist() == pytest.approx([20 / PROMPT] * len(small))
    assert small.negative_log_likelihood.iloc[0] == pytest.approx(by_band(model, input_ids[0], 20), rel=1e-5)
    assert not small.negative_log_likelihood.equals(whole.negative_log_likelihood)


@torch.no_grad()
def by_band(model, ids, kept):
    """The first bin of one window by explicit masks: the prompt is read in full, then each token sees `kept` before it.

    Keys of the prompt were made by full attention, so the mask differs by query.
    """
    size = PROMPT + 32
    near = torch.ones(size, size, dtype=torch.bool).tril()
    near[PROMPT:] &= ~torch.ones(size, size, dtype=torch.bool).tril(-kept - 1)[PROMPT:]
    logits = model(input_ids=ids[None, :size], attention_mask=near[None, None], use_cache=False).logits[0].double()
    losses = -logits.log_softmax(-1)[PROMPT - 1 : -1].gather(1, ids[PROMPT:size, None])
    return losses.sum().item()


def test_the_ratio_is_the_counted_cache_s(model, input_ids):
    rows = measured(model, input_ids, prompt=PROMPT)
    full = 2 * 2 * 2 * 8 * 4 * PROMPT  # layers, keys and values, KV heads, their size, bytes
    assert rows.ratio.tolist() == pytest.approx([count_cache(model, PROMPT).bytes.sum() / full] * len(rows))
    assert (rows.ratio == 1).all() or model.config.model_type != "llama"


@pytest.mark.parametrize("model", ["llama"], indirect=True)
@pytest.mark.parametrize("prompt", [0, PROMPT + TOKENS])
def test_a_window_needs_a_prompt_and_a_text(model, input_ids, prompt):
    with pytest.raises(ValueError, match=rf"^prompt: {prompt} of 100 tokens; at least one must be read and one pred"):
        measured(model, input_ids, prompt=prompt)


@torch.no_grad()
def test_what_is_written_is_the_likeliest_token_by_token(model, input_ids):
    """Against one pass for each token, also where the model holds the text to be at its end."""
    prompts, tokens = input_ids[:, :PROMPT], 12
    changed = deepcopy(model)
    words = changed.get_output_embeddings().weight
    words.mul_(torch.linspace(0.97, 1.03, len(words))[:, None])
    texts = {}
    for each in (model, changed):
        ids = prompts
        for _ in range(tokens):
            ids = torch.cat([ids, each(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
        texts[each] = ids
    model.generation_config.eos_token_id = changed.generation_config.eos_token_id = int(texts[model][0, PROMPT + 2])
    expected, _ = write_on(model, prompts, tokens)
    assert expected.equal(texts[model][:, PROMPT:])
    rows = written_rows(changed, model.config, prompts, model, expected, batch_size=2)
    losses = -model(input_ids=texts[changed], use_cache=False).logits.double().log_softmax(-1)[:, PROMPT - 1 : -1]
    nats = losses.gather(2, texts[changed][:, PROMPT:, None]).sum((1, 2))
    assert rows.negative_log_likelihood.tolist() == pytest.approx(nats.tolist(), rel=1e-4)
    for row, ours, theirs in zip(rows.itertuples(), texts[changed], texts[model], strict=True):
        places = (ours != theirs).nonzero().flatten().tolist()
        assert row.agreed == (places[0] - PROMPT if places else tokens) and row.tokens == tokens
    assert 0 < rows.agreed.sum() < tokens * WINDOWS
    assert written_rows(model, model.config, prompts, model, expected).agreed.eq(tokens).all()


@torch.no_grad()
@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_what_is_written_from_a_smaller_cache_is_its_own(model, input_ids):
    prompts = input_ids[:, :PROMPT]
    expected, _ = write_on(model, prompts, TOKENS)
    options = {"judge": model, "expected": expected}
    small = written_rows(model, model.config, prompts, **options, new_cache=lambda: sliding_cache(model, 20))
    whole = written_rows(model, model.config, prompts, **options, new_cache=lambda: sliding_cache(model, 200))
    assert whole.agreed.eq(TOKENS).all() and small.agreed.sum() < TOKENS * WINDOWS
    assert small.ratio.tolist() == pytest.approx([20 / PROMPT] * WINDOWS)
    own, _ = write_on(model, prompts, TOKENS, lambda: sliding_cache(model, 20))
    losses = -model(input_ids=torch.cat([prompts, own], 1)).logits.double().log_softmax(-1)[:, PROMPT - 1 : -1]
    nats = losses.gather(2, own[..., None]).sum((1, 2))
    assert small.negative_log_likelihood.tolist() == pytest.approx(nats.tolist(), rel=1e-4)
