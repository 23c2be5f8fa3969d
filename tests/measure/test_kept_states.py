"""Kept states change what is read, and nothing of what is written: for every mixer, and for the original."""

import pytest
import torch
from transformers import GenerationConfig

from recurformer.measure.conversation import LONG, KeptStates
from tests.model.tiny_models import BY_GROUP, MIXERS, PACKED, make_backbone, shared_converted, shared_mixed, tokens

END = 0  # `tokens` draws no such id
NEW = 8
GREEDY = GenerationConfig(max_new_tokens=NEW, do_sample=False)
ROOM = 10**9
KINDS = ["original", "sliding", *MIXERS, BY_GROUP, PACKED]
MADE = {"original": lambda: make_backbone("qwen2_gqa"), "sliding": lambda: shared_converted("gemma3_text", "mixed")}


class Reader:
    """A model, with states and without, and the number of tokens that the former has read since the last answer."""

    def __init__(self, kind, most_bytes=ROOM):
        model = MADE[kind]() if kind in MADE else shared_mixed(kind)
        self.kept, self.plain, self.read = KeptStates(model, most_bytes, [END]), KeptStates(model, 0), 0
        self.hook = model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module, inputs, named):
        self.read += (named["input_ids"] if "input_ids" in named else inputs[0]).shape[1]

    def answer(self, *parts):
        """The ids of prompt and answer, which are those of a model that reads all; and the tokens that were read."""
        ids = torch.cat(parts, 1)
        right = self.plain.generate(ids, GREEDY)
        assert right.shape[1] == ids.shape[1] + NEW
        self.read = 0
        written = self.kept.generate(ids, GREEDY)
        assert written.tolist() == right.tolist()
        return written, self.read - (NEW - 1)  # all that it writes but the last


@pytest.fixture
def reader(request):
    reader = Reader(*request.param)
    yield reader
    reader.hook.remove()


def question(seed, length=6):
    return tokens(1, length, seed)


def ended(length=LONG + 10):
    """A long message, with its end."""
    return torch.cat([tokens(1, length - 1), torch.tensor([[END]])], 1)


@pytest.mark.parametrize("reader", [[kind] for kind in KINDS], indirect=True, ids=KINDS)
def test_the_next_turn_and_the_next_question_read_their_own_tokens_alone(reader):
    document = ended()
    first, read = reader.answer(document, question(1))
    assert read == document.shape[1] + 6
    second, read = reader.answer(document, question(2))
    assert read == 6
    assert reader.answer(document, question(1))[1] == 6, "a state that was continued is as before"
    for before in (first, second):
        assert reader.answer(before, question(3, 5))[1] == 1 + 5  # the last token was written, but not read


ORIGINAL_AND_MAMBA = pytest.mark.parametrize("reader", [["original"], ["mamba"]], indirect=True)


@ORIGINAL_AND_MAMBA
def test_where_two_prompts_part_a_state_is_kept(reader):
    text = tokens(1, LONG + 10)  # no message ends in it
    whole = text.shape[1] + 6
    assert reader.answer(text, question(1))[1] == whole
    assert reader.answer(text, question(2))[1] == whole, "the first one has its state where its own prompt ends"
    assert reader.answer(text, question(4))[1] == 6


@ORIGINAL_AND_MAMBA
def test_a_template_that_changes_an_answer_costs_that_answer_alone(reader):
    document = ended()
    written, _ = reader.answer(document, question(1))
    changed = written.clone()
    changed[0, document.shape[1] + 6 + 2] ^= 1  # an id of the answer
    assert reader.answer(changed, question(3))[1] == 6 + NEW + 6


class Stop:
    """A client that leaves at the second token."""

    def __init__(self):
        self.puts = 0

    def put(self, ids):
        self.puts += 1
        if self.puts == 3:
            raise ConnectionError

    def end(self):
        raise AssertionError("it never ends")


@ORIGINAL_AND_MAMBA
def test_a_client_that_leaves_spoils_no_state(reader):
    document = ended()
    with pytest.raises(ConnectionError):
        reader.kept.generate(torch.cat([document, question(1)], 1), GREEDY, streamer=Stop())
    assert reader.answer(document, question(1))[1] == 6


@ORIGINAL_AND_MAMBA
def test_the_states_used_least_recently_go_first(reader):
    documents = [torch.cat([question(seed, LONG), ended(3)], 1) for seed in (10, 11, 12)]
    asked = question(1)
    reader.answer(documents[0], asked)
    one_document = sum(size for _, size in reader.kept.states.values())
    reader.kept.most_bytes = int(2.9 * one_document)
    reader.answer(documents[1], asked)
    reader.answer(documents[0], asked)
    reader.answer(documents[2], asked)
    assert sum(size for _, size in reader.kept.states.values()) <= reader.kept.most_bytes
    assert reader.answer(documents[0], asked)[1] == 6
    assert reader.answer(documents[1], asked)[1] == documents[1].shape[1] + 6


@pytest.mark.parametrize("reader", [["original", 1000], ["mamba", 1000]], indirect=True)
def test_a_state_larger_than_the_room_is_not_kept(reader):
    for _ in range(2):
        assert reader.answer(ended(), question(1))[1] == LONG + 10 + 6
    assert reader.kept.states == {}


def test_the_bytes_are_those_that_the_tensors_keep_alive():
    """A sliding layer's keys are the end of all that was read."""
    reader = Reader("sliding")
    reader.answer(ended(), question(1))
    reader.hook.remove()
    for cache, size in reader.kept.states.values():
        keys = [layer.keys for layer in cache.layers if hasattr(layer, "keys")]
        held = 2 * sum(x.untyped_storage().nbytes() for x in keys)  # with the values
        assert any(x.untyped_storage().nbytes() > x.nbytes for x in keys)
        assert held <= size <= held + 10**5  # of the mixers' states
