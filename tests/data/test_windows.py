import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from recurformer.data.backbones import byte_tokenizer
from recurformer.data.windows import text_prefix, windows

BYTES = byte_tokenizer()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.integers(1, 30), st.integers(0, 100))
def test_windows_are_all_the_full_disjoint_pieces(lengths, tokens, seed):
    texts = ["".join(chr(97 + (place * 7 + index) % 26) for place in range(n)) for index, n in enumerate(lengths)]
    if max(lengths) < tokens:
        with pytest.raises(ValueError, match="longest"):
            windows(texts, BYTES, tokens, seed=seed)
        return
    result = windows(texts, BYTES, tokens, seed=seed)
    pieces = [text[at : at + tokens] for text in texts for at in range(0, len(text) - tokens + 1, tokens)]
    assert result.dtype == torch.int64 and result.shape == (len(pieces), tokens)
    assert sorted(BYTES.batch_decode(result)) == sorted(pieces)


def test_beginnings_of_different_articles_come_first():
    texts = [letter * 10 + letter.upper() * 10 for letter in "abcde"]
    decoded = BYTES.batch_decode(windows(texts, BYTES, 10))
    assert {piece[0] for piece in decoded[:5]} == set("abcde")
    assert {piece[0] for piece in decoded[5:]} == set("ABCDE")


def test_seed_decides_the_order_and_count_takes_the_first():
    texts = [letter * 20 for letter in "abcdefghijklmnopqrst"]
    first = windows(texts, BYTES, 10, seed=1)
    assert torch.equal(first, windows(texts, BYTES, 10, seed=1))
    assert not torch.equal(first, windows(texts, BYTES, 10, seed=2))
    assert torch.equal(windows(texts, BYTES, 10, count=7, seed=1), first[:7])


def tokenizer_with(template):
    """A byte tokenizer that puts <bos> (1) and <eos> (2) where the template says."""
    tokenizer = byte_tokenizer()
    special = [("<bos>", 1), ("<eos>", 2)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    return tokenizer


def test_prefix_is_what_the_tokenizer_puts_before_a_text():
    assert text_prefix(BYTES) == []
    assert text_prefix(tokenizer_with("<bos> $A <eos>")) == [1]
    behind = tokenizer_with("$A <eos>")
    assert text_prefix(behind) == []
    behind.bos_token = behind.eos_token  # the only token of an empty text is then BOS's id, and stands behind the text
    assert text_prefix(behind) == []
    without = tokenizer_with("$A <eos>")
    without.bos_token = None
    assert text_prefix(without) == []


def test_every_window_starts_as_the_tokenizer_starts_texts():
    result = windows(["a" * 18], tokenizer_with("<bos> $A"), 10)
    assert result.shape == (2, 10) and (result[:, 0] == 1).all()
    assert BYTES.decode(result[1, 1:]) == "a" * 9
    assert (windows(["a" * 18], BYTES, 9)[:, 0] != 1).all()


@pytest.mark.parametrize(
    ("texts", "tokens", "count", "message"),
    [
        ([], 10, None, "no texts"),
        (["abc"], 10, None, "the longest of 1 texts has 3 tokens, a window needs 10"),
        (["a" * 25], 10, 3, "3 windows of 10 tokens were asked for, 1 texts give only 2"),
        (["abc"], 0, None, "leave no room"),
    ],
)
def test_impossible_requests_are_one_clear_line(texts, tokens, count, message):
    with pytest.raises(ValueError, match=message):
        windows(texts, BYTES, tokens, count)
