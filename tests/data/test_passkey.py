import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recurformer.data.backbones import byte_tokenizer
from recurformer.data.passkey import (
    FACTS,
    FILLER,
    NEEDLE_TASKS,
    OWNERS,
    TURNS,
    PasskeyTask,
    score_passkey,
    starts_with_key,
)

BYTES = byte_tokenizer()
TEXT = [
    "One short sentence. Another one follows it, much longer than the first was! A third?",
    "Then a second text. It ends.",
]


@settings(max_examples=40, deadline=None)
@given(st.integers(600, 3000), st.floats(0, 1), st.sampled_from([FILLER, TEXT]), st.integers(0, 2**32))
def test_length_depth_and_needle(tokens, depth, filler, seed):
    task = PasskeyTask(BYTES, tokens, depth, filler=filler)
    sample = task.sample(np.random.default_rng(seed))
    longest = max(size for _, size in task.hay)
    assert sample.tokens == len(BYTES(sample.prompt)["input_ids"])
    assert tokens - longest <= sample.tokens <= tokens
    hay = tokens - 350  # what is not hay takes less than 350 bytes
    assert abs(sample.depth - depth) <= longest / hay + 1e-9
    (key,) = sample.keys
    assert sample.prompt.count(key) == 2 and len(key) == 5
    assert sample.prompt.endswith("The pass key is") and sample.answer == f" {key}"
    place = sample.prompt.index(f"The pass key is {key}")
    assert abs((place - 200) / hay - depth) < 0.5


def test_depth_and_key_are_drawn_from_the_generator():
    task = PasskeyTask(BYTES, 2000)
    rng = np.random.default_rng(0)
    samples = [task.sample(rng) for _ in range(100)]
    depths = [sample.depth for sample in samples]
    assert min(depths) < 0.1 and max(depths) > 0.9 and np.mean(depths) == pytest.approx(0.5, abs=0.1)
    assert len({sample.keys for sample in samples}) > 95
    assert task.sample(np.random.default_rng(7)) == task.sample(np.random.default_rng(7))


@pytest.mark.parametrize(
    ("generated", "keys", "right"),
    [
        (" 12345. Remember", ["12345"], 1),
        ("is 12345", ["12345"], 1),
        (" 1234", ["12345"], 0),
        (" 123456", ["12345"], 0),
        ("no 1 12345", ["12345"], 0),
        (" 11. The pass key of Bob is 22. The pass key of Carol is 33", ["11", "22", "33"], 3),
        (" 11. The pass key of Bob is 99. The pass key of Carol is 33", ["11", "22", "33"], 2),
        (" 22. The pass key of Bob is 11", ["11", "22", "33"], 2),
        (" 11, 11, 11", ["11", "22", "33"], 1),
        (" 98, 99, 97, 11, 22, 33", ["11", "22", "33"], 0),
    ],
)
def test_each_key_counts_once_in_any_order(generated, keys, right):
    assert score_passkey(generated, keys) == right


def owned_keys(prompt):
    return {owner: key for owner in OWNERS for key in re.findall(rf"pass key of {owner} is (\d+)", prompt)}


@settings(max_examples=40, deadline=None)
@given(st.integers(1400, 3000), st.floats(0, 1), st.sampled_from(sorted(NEEDLE_TASKS)), st.integers(0, 2**32))
def test_needles_with_owners(tokens, depth, name, seed):
    """Each is there once with an owner of its own, the question names whose are asked for, and the depth is theirs."""
    task = PasskeyTask(BYTES, tokens, depth, filler=TEXT, **NEEDLE_TASKS[name])
    sample = task.sample(np.random.default_rng(seed))
    keys = owned_keys(sample.prompt)
    assert len(set(keys.values())) == len(keys) == NEEDLE_TASKS[name]["needles"]
    longest = max(size for _, size in task.hay)
    assert tokens - longest <= len(BYTES(sample.prompt)["input_ids"]) == sample.tokens <= tokens
    question = re.search(r"What (?:is|are) the pass keys? (.*)\? The pass key of (\w+) is$", sample.prompt)
    asked = re.findall(r"of (\w+)", question[1])
    assert sample.keys == tuple(keys[owner] for owner in asked) and asked[0] == question[2]
    assert len(asked) == NEEDLE_TASKS[name]["queries"]
    assert owned_keys(f"The pass key of {asked[0]} is{sample.answer}") == {owner: keys[owner] for owner in asked}
    assert abs(sample.depth - depth) <= longest / (tokens - 800)
    assert score_passkey(sample.answer, sample.keys) == len(asked)


def test_several_that_are_asked_for_stand_about_the_depth_in_any_order():
    task = PasskeyTask(BYTES, 3000, 0.75, needles=4, queries=4)
    orders = set()
    for seed in range(20):
        sample = task.sample(np.random.default_rng(seed))
        places = [sample.prompt.index(f"is {key}.") / 3000 for key in sample.keys]
        orders.add(tuple(np.argsort(places)))
        assert 0.5 < min(places) < 0.65 and 0.8 < max(places) < 0.95
    assert len(orders) > 10


@settings(max_examples=20, deadline=None)
@given(st.integers(1600, 4000), st.integers(0, 2**32))
def test_a_question_in_every_turn(tokens, seed):
    """Each fact stands in the text twice, they lie apart, and no question does; each question has its own answer."""
    task = PasskeyTask(BYTES, tokens, filler=TEXT, **TURNS)
    sample = task.sample(np.random.default_rng(seed))
    longest = max(size for _, size in task.hay)
    assert tokens - longest <= len(BYTES(sample.prompt)["input_ids"]) == sample.tokens <= tokens
    told = {
        what: re.findall(rf"The {what} is (\d+)\. Remember it\. (\d+) is the {what}\.", sample.prompt) for what in FACTS
    }
    assert all(len(found) == 1 and len(set(found[0])) == 1 for found in told.values())
    assert len({found[0] for found in told.values()}) == len(sample.turns) == len(FACTS)
    assert "?" not in sample.prompt.replace("A third?", "")
    for question, answer, depth in sample.turns:
        asked = re.fullmatch(r"\n\nWhat is the (.*)\? As said above, the (.*) is", question)
        assert asked[1] == asked[2] and starts_with_key(answer, told[asked[1]][0][0])
        earlier = [other for other in sample.turns if other.depth < depth]
        places = [sample.prompt.index(other.answer.strip()) for other in earlier]
        assert all(place < sample.prompt.index(answer.strip()) for place in places)
    hay = tokens - 1300  # what is not hay takes less
    apart = np.diff(sorted(turn.depth for turn in sample.turns))
    assert apart == pytest.approx(0.1, abs=2 * longest / max(hay, 1))


@pytest.mark.parametrize(
    ("arguments", "message"), [({"tokens": 50}, "tokens is 50"), ({"filler": [" "]}, "no sentence")]
)
def test_impossible_tasks_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        PasskeyTask(BYTES, **arguments)
