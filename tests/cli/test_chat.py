"""A conversation in a terminal: its cache gives the answers that a model gives which reads all turns again."""

import io
from copy import deepcopy

import pytest
import torch
from transformers import TextStreamer

from recurformer import convert
from recurformer.cli.checkpoints import save_checkpoint
from recurformer.cli.main import main
from recurformer.data.backbones import open_random
from recurformer.measure.conversation import Conversation

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}|{% endfor %}[assistant]"
SHORTENED = "{% for m in messages[-3:] %}[{{ m.role }}]{{ m.content }}|{% endfor %}[assistant]"
TOKENS = 6


@pytest.fixture(scope="module")
def pair():
    """A converted model with one layer without attention heads, and its tokenizer of bytes."""
    model, tokenizer = open_random("byte", hidden_size=32, heads=4, kv_heads=2, initializer_range=0.3)
    torch.manual_seed(0)
    return convert(model, [[0, 1, 2, 3], [0, 1]]).eval(), tokenizer


def rereading(model, tokenizer, said):
    """The answers of a model that reads all turns each time, without a cache, and the ids of the conversation."""
    ids, answers = torch.empty(1, 0, dtype=torch.long), []
    for turn in said:
        ids = torch.cat([ids, tokenizer(turn, return_tensors="pt").input_ids], 1)
        before = ids.shape[1]
        ids = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, use_cache=False)
        answers.append(tokenizer.decode(ids[0, before:], skip_special_tokens=True))
    return answers, ids


def test_the_cache_gives_the_answers_of_reading_again(pair):
    conversation, said = Conversation(*pair, TOKENS), ["Hello", " and then?", " so"]
    answers, ids = rereading(*pair, said)
    assert [conversation.answer(turn) for turn in said] == answers
    assert torch.equal(conversation.ids, ids)
    assert conversation.cache.get_seq_length() == ids.shape[1] - 1  # the last token is read with the next turn
    conversation.reset()
    assert [conversation.answer(turn) for turn in said] == answers


def test_settings_of_a_checkpoint_do_not_stop_a_conversation(pair):
    model = deepcopy(pair[0])
    others = {"use_cache": False, "num_beams": 2, "num_return_sequences": 2, "cache_implementation": "static"}
    for name, value in others.items():
        setattr(model.generation_config, name, value)
    conversation, plain = Conversation(model, pair[1], TOKENS), Conversation(*pair, TOKENS)
    for turn in ("Hello", " and then?"):
        assert conversation.answer(turn, TextStreamer(pair[1])) == plain.answer(turn)


@pytest.mark.parametrize(("template", "continued"), [(TEMPLATE, True), (SHORTENED, False)])
def test_a_template_renders_the_turns(pair, monkeypatch, template, continued):
    model, tokenizer = pair
    monkeypatch.setattr(tokenizer, "chat_template", template)
    conversation = Conversation(model, tokenizer, TOKENS)
    first = conversation.answer("a")
    conversation.answer("b")
    earlier = conversation.cache
    conversation.answer("c")
    assert (conversation.cache is earlier) == continued
    text = tokenizer.decode(conversation.ids[0])
    assert text.startswith("[user]a|[assistant]" + first) == continued
    assert "[user]c|[assistant]" in text


class Stop:
    """A user who presses Ctrl-C at the third token."""

    tokens = 0

    def put(self, ids):
        self.tokens += 1
        if self.tokens > 3:
            raise KeyboardInterrupt


def test_a_stopped_answer_is_forgotten_and_nothing_else(pair):
    conversation = Conversation(*pair, TOKENS)
    first = conversation.answer("Hello")
    with pytest.raises(KeyboardInterrupt):
        conversation.answer(" stop", Stop())
    answers, ids = rereading(*pair, ["Hello", " and then?"])
    assert [first, conversation.answer(" and then?")] == answers
    assert torch.equal(conversation.ids, ids)


def test_in_a_terminal(pair, tmp_path, monkeypatch, capsys):
    save_checkpoint(tmp_path / "model", *pair)
    typed = b"Hello\n" + b"x" * 2100 + b"\n and then?\n\n/reset\nHello\nH\xfcllo\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8"))
    assert main(["chat", str(tmp_path / "model"), "--tokens", str(TOKENS)]) == 0
    shown, errors = capsys.readouterr()
    (first, second), _ = rereading(*pair, ["Hello", " and then?"])
    assert shown.count(first) >= 2 and second in shown
    assert "it is longer than the 2048 that the model can read: shorten the message, /reset" in errors


def test_a_stopped_answer_leaves_nothing_in_the_next(pair, tmp_path, monkeypatch, capsys):
    save_checkpoint(tmp_path / "model", *pair)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Hello\n/reset\n and then?\n"), encoding="utf-8"))
    put, calls = TextStreamer.put, []

    def stopping(streamer, ids):
        put(streamer, ids)
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(TextStreamer, "put", stopping)
    assert main(["chat", str(tmp_path / "model"), "--tokens", str(TOKENS)]) == 0
    (answer,), _ = rereading(*pair, [" and then?"])
    assert capsys.readouterr().out.split("forgotten\n")[1] == f"> > {answer}\n> \n"
