import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from recurformer.data.hashhop import byte_tokenizer, hash_tokenizer

BYTES = byte_tokenizer()


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_bytes_are_lossless_and_one_a_token(text):
    ids = BYTES(text)["input_ids"]
    assert len(ids) == len(text.encode())
    assert BYTES.decode(ids) == text


@pytest.mark.parametrize("text", ["<eos>", "<bos>x<pad>", "a  b\n\tc ", " ,", "日本 naïve", "do n't , it 's ."])
def test_bytes_take_special_words_and_spaces_literally(text):
    ids = BYTES(text)["input_ids"]
    assert min(ids) >= 3 and BYTES.decode(ids) == text


def test_special_ids():
    assert (BYTES.pad_token_id, BYTES.bos_token_id, BYTES.eos_token_id, len(BYTES)) == (0, 1, 2, 259)
    hashes = hash_tokenizer(64)
    assert (hashes.pad_token_id, hashes.bos_token_id, hashes.eos_token_id, len(hashes)) == (0, 1, 2, 64)
    assert hashes("<bos> h0 h57 <sep> <query> h58 nonsense")["input_ids"] == [1, 6, 63, 5, 4, 3, 3]
    assert hashes.decode([1, 6, 63, 5, 4, 2], skip_special_tokens=True) == "h0 h57"


@pytest.mark.parametrize("make", [lambda: hash_tokenizer(64), byte_tokenizer])
def test_survives_saving(make, tmp_path):
    before = make()
    before.save_pretrained(tmp_path)
    after = AutoTokenizer.from_pretrained(tmp_path)
    text = "<bos> h0 h5 <query> h3"
    assert after(text)["input_ids"] == before(text)["input_ids"]
    assert after.padding_side == "left" and after.pad_token_id == 0
    assert after.decode(after(text)["input_ids"]) == text


def test_impossible_vocabularies_are_refused():
    with pytest.raises(ValueError, match="vocabulary is 6; it must exceed"):
        hash_tokenizer(6)
    with pytest.raises(ValueError, match="exactly 259"):
        byte_tokenizer(512)
