"""Tasks of recall: key-value lists, in which every answer stands once and nowhere else, and MQAR."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from recurformer.data import IGNORED
from recurformer.data.backbones import byte_tokenizer, hash_tokenizer
from recurformer.data.datasets import draw_distinct
from recurformer.data.lookups import SHORTEST_LIST, copy_batch, frequent_words, plant
from recurformer.heads.probes import key_value_samples
from recurformer.measure.mqar import draw_weighted, mqar_batch

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


sizes = st.integers(1, 16).flatmap(
    lambda pairs: st.tuples(st.just(pairs), st.integers(2 * pairs, 60).map(lambda n: 2 * n))
)


@settings(max_examples=80, deadline=None)
@given(sizes, st.integers(0, 2**32))
def test_every_key_is_asked_once_and_labelled_with_its_value(size, seed):
    pairs, length = size
    vocabulary = 2 * (length + 1)
    input_ids, labels = mqar_batch(np.random.default_rng(seed), 3, length, pairs, vocabulary=vocabulary)
    assert input_ids.shape == labels.shape == (3, length) and input_ids.dtype == labels.dtype == torch.int64
    for ids, marks in zip(input_ids.tolist(), labels.tolist(), strict=True):
        keys, values = ids[0 : 2 * pairs : 2], ids[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert all(1 <= key < vocabulary // 2 for key in keys)
        assert all(vocabulary // 2 <= value < vocabulary for value in values)
        # the library shifts: the output at a place, where the key stands, predicts the label at the next one
        asked = {ids[place - 1]: (place - 1, mark) for place, mark in enumerate(marks) if mark != -100}
        assert {key: mark for key, (_, mark) in asked.items()} == dict(zip(keys, values, strict=True))
        assert all(place >= 2 * pairs and place % 2 == 0 for place, _ in asked.values())
        assert sum(token != 0 for token in ids) == 3 * pairs


@pytest.mark.parametrize(("length", "pairs"), [(64, 16), (1024, 256)])
def test_a_quarter_of_the_length_uses_every_slot(length, pairs):
    """With kv = L/4 the power law has nothing to choose: all slots hold a query."""
    _, labels = mqar_batch(np.random.default_rng(0), 2, length, pairs, vocabulary=8192)
    assert (labels[:, 2 * pairs + 1 :: 2] != -100).all()
    assert (labels[:, 2 * pairs :: 2] == -100).all()


def test_power_law_puts_most_queries_first():
    """At (64, 4) and a = 0.01, 60 % of the queries stand in the first quarter; a = 1 is uniform (the control)."""
    for power, expected in ((0.01, 0.60), (1.0, 0.25)):
        _, labels = mqar_batch(np.random.default_rng(0), 5000, 64, 4, vocabulary=256, power=power)
        places = (labels != -100).nonzero()[:, 1] - 1
        slots = (places - 8) // 2  # 28 slots of two tokens
        assert (slots < 7).float().mean() == pytest.approx(expected, abs=0.02)


def test_gaps_follow_the_law_of_successive_draws():
    """Against numpy's own weighted choice without replacement, which zoology uses: first draws and sets of draws."""
    weights = np.arange(1, 9, dtype=float) ** -0.99
    fraction = weights / weights.sum()
    draws = draw_weighted(np.random.default_rng(0), weights, 20_000, 3)
    assert chisquare(np.bincount(draws[:, 0], minlength=8), fraction * 20_000).pvalue > 0.01
    reference_rng = np.random.default_rng(1)
    reference = np.stack([reference_rng.choice(8, 3, replace=False, p=fraction) for _ in range(5000)])
    expected = np.bincount(reference.ravel(), minlength=8) / 5000
    assert np.bincount(draws.ravel(), minlength=8) / 20_000 == pytest.approx(expected, abs=0.03)
    assert all(len(set(row)) == 3 for row in draws[:200].tolist())


def test_distinct_draws_are_uniform_in_every_place():
    draws = draw_distinct(np.random.default_rng(0), 10, 20_000, 10)
    assert (np.sort(draws, axis=1) == np.arange(10)).all()
    for place in (0, 4, 9):
        assert chisquare(np.bincount(draws[:, place], minlength=10)).pvalue > 0.01
    joint = np.bincount(draws[:, 0] * 10 + draws[:, 1], minlength=100).reshape(10, 10)
    assert chisquare(joint[~np.eye(10, dtype=bool)]).pvalue > 0.01


WORDS = ["amber", "birch", "cedar", "dogwood"]


@settings(max_examples=40, deadline=None)
@given(every=st.integers(1, 20), back=st.integers(1, 30), seed=st.integers(0, 2**32))
def test_planted_pairs_stand_where_they_shall_and_come_again(every, back, seed):
    numbers = [str(number) for number in range(200)]
    texts = [" ".join(["the", *WORDS * 9, "end"]), " ".join(numbers)]
    given = pd.DataFrame({"title": ["a", "b"], "text": texts, "split": ["train", "validation"]})
    planted = plant(given, words=4, every=every, back=back, lists=3, seed=seed)
    assert planted.split.tolist() == [*given.split, "train"] and set(planted.text[2].split()) == set(WORDS)
    told = planted.text[1].split(" ")
    assert [word for word in told if word not in WORDS] == numbers  # the text itself is as it was
    behind, number = [[] for _ in numbers], -1
    for word in told:
        if word in WORDS:
            behind[number].append(word)
        else:
            number += 1
    pairs = [list(zip(words[::2], words[1::2], strict=True)) for words in behind]
    firsts = range(0, len(numbers), every)
    for first in firsts:
        later = pairs[first + back : first + 2 * back + 1]
        assert first + 2 * back >= len(numbers) or pairs[first][-1] in [pair for here in later for pair in here]
    again = sum(first + 2 * back < len(numbers) for first in firsts)
    assert len(firsts) + again <= sum(map(len, pairs)) <= 2 * len(firsts)


def test_frequent_words_are_long_ones_between_spaces():
    texts = ["a tree, a tree and some tree (trees) and tree ", " some Some moss some some "]
    assert frequent_words(texts, 2) == ["some", "tree"]
    with pytest.raises(ValueError, match="words: the texts have 4 of four letters or more, 9 were asked for"):
        frequent_words([*texts, " moss tree Some some "], 9)


@settings(max_examples=40, deadline=None)
@given(st.integers(2 * SHORTEST_LIST, 60), st.integers(0, 2**32))
def test_a_list_is_told_again_and_again(length, seed):
    input_ids, labels = copy_batch(np.random.default_rng(seed), 5, length, [3, 7, 8, 11, 20])
    assert input_ids.shape == labels.shape == (5, length) and input_ids.dtype == labels.dtype == torch.int64
    assert set(input_ids.flatten().tolist()) <= {3, 7, 8, 11, 20}
    for row, label in zip(input_ids, labels, strict=True):
        period = int((label != IGNORED).nonzero()[0]) - 1
        assert SHORTEST_LIST <= period <= length // 2
        assert torch.equal(row[period:], row[:-period])
        assert (label[: period + 1] == IGNORED).all() and torch.equal(label[period + 1 :], row[period + 1 :])
