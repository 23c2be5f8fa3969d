import math

import pandas as pd
import pytest
import torch

from recurformer.measure.language import perplexity, perplexity_rows

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
        pd.testing.assert_frame_equal(single, batched, rtol=1e-5)


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
