"""Key-value lists: what is asked is in the list, once, and nowhere else to be had."""

import pytest
import torch

from recurformer.data import IGNORED
from recurformer.data.hashhop import byte_tokenizer, hash_tokenizer
from recurformer.data.recall import key_value_samples

PAIRS, QUESTIONS = 6, 3


def read_lines(row: torch.Tensor) -> list[tuple[str, str]]:
    text = byte_tokenizer().decode(row)
    assert text.endswith("\n")
    return [tuple(line.split(":")) for line in text.splitlines()]


def test_every_question_repeats_a_line_of_the_list_and_asks_its_value():
    input_ids, labels = key_value_samples(byte_tokenizer(), 5, PAIRS, QUESTIONS, seed=1)
    assert input_ids.dtype == labels.dtype == torch.int64 and input_ids.shape == labels.shape
    for row, label in zip(input_ids, labels, strict=True):
        lines = read_lines(row)
        listed, asked = lines[:PAIRS], lines[PAIRS:]
        assert len({item for line in listed for item in line}) == 2 * PAIRS  # all keys and values differ
        assert len(set(asked)) == QUESTIONS and set(asked) <= set(listed)
        places = label != IGNORED
        assert torch.equal(label[places], row[places])
        assert [byte_tokenizer().decode([token]) for token in label[places]] == [value for _, value in asked]


def test_the_same_seed_gives_the_same_lists():
    one, again, other = (key_value_samples(byte_tokenizer(), 2, PAIRS, QUESTIONS, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, other)


@pytest.mark.parametrize(
    ("tokenizer", "pairs", "questions", "message"),
    [
        (byte_tokenizer(), 2, 3, "3 questions need as many pairs, there are 2"),
        (byte_tokenizer(), 40, 3, "80 different items are needed"),
        (hash_tokenizer(), 2, 1, "4 different items are needed"),
    ],
)
def test_impossible_lists_are_refused(tokenizer, pairs, questions, message):
    with pytest.raises(ValueError, match=message):
        key_value_samples(tokenizer, 1, pairs, questions)
