"""A block of settings survives the way through a command line."""

import shlex
from argparse import ArgumentParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recurformer.cli.arguments import add_block, flags, read_block
from recurformer.study import Backbone, HashHopEvaluation, MqarTask, Profiling, SinkHead, Sizes, Tasks, Training


def through_the_shell(block, prefix=""):
    parser = ArgumentParser()
    add_block(parser, type(block), prefix)
    words = shlex.split(shlex.join(flags(block.model_dump(mode="json"), prefix)))
    return read_block(parser.parse_args(words), type(block), prefix)


@pytest.mark.parametrize(
    "block",
    [
        Training(steps=3, batch_size=2, learning_rate=1e-05, mixer_learning_rate=0.5, schedule="one_cycle"),
        Training(steps=3, batch_size=2, learning_rate=1e-05, mixer_learning_rate=0.0),
        Backbone(source="hub", repo="owner/name of it", revision="main", shape="llama2-7b"),
        MqarTask(
            train=[(32, 4), (64, 8)],
            test=[(64, 16)],
            training=Training(steps=1, batch_size=1, learning_rate=0.1),
        ),
        Sizes(lengths=[7], units=["head"]),
        HashHopEvaluation(variants=["paper"], samples=3),
        Tasks(names=["ruler", "mmlu"], ruler_length=8192, num_fewshot=[("mmlu", 5)]),
    ],
    ids=lambda block: type(block).__name__,
)
@pytest.mark.parametrize("prefix", ["", "task-"])
def test_round_trip(block, prefix):
    assert through_the_shell(block, prefix) == block


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0, 1))
def test_round_trip_of_any_numbers(samples, tokens, window, threshold):
    block = Profiling(samples=samples, tokens=tokens + window, window=window, threshold=threshold)
    assert through_the_shell(block) == block


def test_what_several_flags_say_together_is_refused_under_no_name_of_one():
    add_block(parser := ArgumentParser(), SinkHead)
    with pytest.raises(ValueError, match=r"^--…: layer 1 and head None: give both or neither$"):
        read_block(parser.parse_args(["--layer", "1"]), SinkHead)
