import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recurformer.tasks.passkey import FILLER, PasskeyTask, score_passkey
from recurformer.tasks.tokenizer import byte_tokenizer

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
    longest = max(task.sizes)
    assert sample.tokens == len(BYTES(sample.prompt)["input_ids"])
    assert tokens - longest <= sample.tokens <= tokens
    hay = tokens - 350  # what is not hay takes less than 350 bytes
    assert abs(sample.depth - depth) <= longest / hay + 1e-9
    assert sample.prompt.count(sample.key) == 2 and len(sample.key) == 5
    assert sample.prompt.endswith("The pass key is") and sample.answer == f" {sample.key}"
    place = sample.prompt.index(f"The pass key is {sample.key}")
    assert abs((place - 200) / hay - depth) < 0.5


def test_sentences_are_kept_whole_and_in_order():
    sample = PasskeyTask(BYTES, 1000, 0.5).sample(np.random.default_rng(0))
    hay = sample.prompt.split(" The pass key is")[0].split("there. ")[1]
    assert hay.replace(" ", "") in (FILLER[0].replace(" ", "") * 20)


def test_depth_and_key_are_drawn_from_the_generator():
    task = PasskeyTask(BYTES, 2000)
    rng = np.random.default_rng(0)
    samples = [task.sample(rng) for _ in range(100)]
    depths = [sample.depth for sample in samples]
    assert min(depths) < 0.1 and max(depths) > 0.9 and np.mean(depths) == pytest.approx(0.5, abs=0.1)
    assert len({sample.key for sample in samples}) > 95
    assert task.sample(np.random.default_rng(7)) == task.sample(np.random.default_rng(7))


@pytest.mark.parametrize(
    ("generated", "right"),
    [
        (" 12345", True),
        (" 12345. Remember", True),
        ("is 12345", True),
        (" 1234", False),
        (" 123456", False),
        ("", False),
        ("no 1 12345", False),
    ],
)
def test_score(generated, right):
    assert score_passkey(generated, "12345") is right


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": 50}, "tokens is 50"),
        ({"depth": 1.5}, "depth is 1.5"),
        ({"digits": 0}, "digits is 0"),
        ({"filler": [" "]}, "no sentence"),
    ],
)
def test_impossible_tasks_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        PasskeyTask(BYTES, **arguments)
