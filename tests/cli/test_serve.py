"""OpenAI's client and clients that behave badly, at a real server of a converted model."""

import gc
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Thread

import openai
import pytest
import torch

from recurformer import convert
from recurformer.cli.checkpoints import save_checkpoint
from recurformer.cli.main import main
from recurformer.cli.server import Answer, listen, make_app, server
from recurformer.data.backbones import open_random
from recurformer.measure.conversation import KeptStates, special_ids
from tests.snippets import blocks

NAME = "tiny"
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>{% endfor %}[assistant]"
LONGEST = 2048
NO_END = {"2": -100}
"""Takes from the model the token that ends an answer."""
DOCUMENT = "All of this was said before, and more than once. " * 10


@pytest.fixture(scope="module")
def pair():
    model, tokenizer = open_random("byte", hidden_size=32, heads=4, kv_heads=2, initializer_range=0.3)
    tokenizer.chat_template, tokenizer.split_special_tokens = TEMPLATE, False
    torch.manual_seed(0)
    return convert(model, [[0, 1, 2, 3], [0, 1]]).eval(), tokenizer


class Served:
    """The address of a server in this process, a client of it, and the tokens that its model has read."""

    def __init__(self, address, model):
        self.address, self.read = address, 0
        self.client = openai.OpenAI(
            base_url="http://{}:{}/v1".format(*address), api_key="none", max_retries=0, timeout=120
        )
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module, inputs, named):
        self.read += (named["input_ids"] if "input_ids" in named else inputs[0]).shape[1]

    def ask(self, messages, tokens=12, **more):
        messages = said(messages) if isinstance(messages, str) else messages
        settings = {"model": NAME, "max_tokens": tokens, "temperature": 0, "logit_bias": NO_END}
        return self.client.chat.completions.create(messages=messages, **settings | more)

    def post(self, body):
        """The status and the error's message of a body that OpenAI's client would not send."""
        connection = http.client.HTTPConnection(*self.address, timeout=120)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.load(response)["error"]["message"]


def said(*turns):
    return [{"role": ("user", "assistant")[place % 2], "content": turn} for place, turn in enumerate(turns)]


def text(answer):
    return answer.choices[0].message.content


@pytest.fixture(scope="module")
def served(pair):
    model, tokenizer = pair
    with listen("127.0.0.1", 0) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # what a client does not read soon waits here
        running = server(make_app(NAME, tokenizer, KeptStates(model, 10**8, special_ids(tokenizer))))
        thread = Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        yield Served(listening.getsockname(), model)
        running.should_exit = True
        thread.join()


def reading_all(pair, messages, tokens=12):
    """The answer of a model that keeps nothing."""
    model, tokenizer = pair
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    bad = [[int(token)] for token in NO_END]
    settings = {"do_sample": False, "use_cache": False, "max_new_tokens": tokens, "bad_words_ids": bad}
    return tokenizer.decode(model.generate(ids, **settings)[0, ids.shape[1] :], skip_special_tokens=True)


def test_an_answer_and_its_parts_are_those_of_a_model_that_reads_all(pair, served):
    whole = served.ask("Hello")
    assert text(whole) == reading_all(pair, said("Hello"))
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens, whole.model) == ("length", 12, NAME)
    parts = list(served.ask("Hello", stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == text(whole)
    assert parts[-1].choices[0].finish_reason == "length" and len(parts) > 5
    assert [model.id for model in served.client.models.list()] == [NAME]


def test_a_document_is_read_once_and_a_conversation_goes_on(pair, served):
    document = {"role": "system", "content": DOCUMENT}
    served.read = 0
    first = served.ask([document, *said("First?")])
    assert served.read > len(DOCUMENT) and first.usage.prompt_tokens_details.cached_tokens == 0
    served.read = 0
    messages = [document, *said("Second?")]
    answer = served.ask(messages)
    assert served.read == len("[user]Second?!") + len("[assistant]") + 12 - 1  # "!" for <eos>, which is one token
    assert text(answer) == reading_all(pair, messages)
    known = answer.usage.prompt_tokens_details.cached_tokens
    assert known == answer.usage.prompt_tokens - len("[user]Second?!") - len("[assistant]") > len(DOCUMENT)
    *_, last = served.ask([document, *said("Third?")], stream=True)
    assert last.usage.prompt_tokens_details.cached_tokens == known


@pytest.mark.parametrize("stops", [1, 2])
def test_an_answer_ends_before_the_text_that_stops_it(served, stops):
    whole = text(served.ask("Hello"))
    sign = next(sign for sign in whole[2:-2] if sign.isascii())
    stop, expected = sign if stops == 1 else ["never said", sign], whole[: whole.index(sign)]
    answer, parts = served.ask("Hello", stop=stop), list(served.ask("Hello", stop=stop, stream=True))
    assert text(answer) == "".join(part.choices[0].delta.content or "" for part in parts) == expected
    assert answer.choices[0].finish_reason == parts[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("stops", [None, "ab", ["aab", "zz"], ["b c"]])
def test_no_part_of_a_stop_is_told(size, stops):
    said, answer = "a aa aab c zz", Answer(stops)
    parts = [answer.tell(said[start : start + size]) for start in range(0, len(said), size)]
    cuts = [said.find(stop) for stop in ([stops] if isinstance(stops, str) else stops or ()) if stop in said]
    assert "".join([*parts, answer.tell("", is_last=True)]) == said[: min(cuts, default=len(said))]


def test_the_client_of_the_documents_gets_an_answer(pair, served, capsys):
    (code,) = (block.code for block in blocks("docs/models.md") if block.code.startswith("from openai"))
    code = code.replace("http://127.0.0.1:8000", "http://{}:{}".format(*served.address)).replace("OUT", NAME)
    code = code.replace("stream=True", "stream=True, max_tokens=20, temperature=0")
    exec(code, {"document": DOCUMENT})
    messages = [{"role": "system", "content": DOCUMENT}, *said("Who wrote it?")]
    assert capsys.readouterr().out == text(served.ask(messages, 20, logit_bias=None))


def test_a_temperature_draws_tokens_and_a_seed_repeats_them(served):
    drawn = [text(served.ask("Hello", temperature=2, seed=seed)) for seed in (1, 1, 2, 3)]
    assert drawn[0] == drawn[1] and len(set(drawn)) > 1


def test_requests_at_the_same_time_are_all_answered(pair, served):
    questions = [f"Question {number}" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda question: text(served.ask(question)), questions))
    assert answers == [reading_all(pair, said(question)) for question in questions]


def test_a_connection_that_breaks_ends_its_answer_alone(pair, served):
    served.read = 0
    stream = served.ask("Write a lot", tokens=1900, stream=True)
    next(iter(stream))
    stream.close()
    assert text(served.ask("Hello")) == reading_all(pair, said("Hello"))
    assert served.read < 1000


def test_an_answer_is_forgotten_however_it_ends(served):
    stream = served.ask("Write a lot", tokens=1900, stream=True)
    next(iter(stream))
    stream.close()
    for streams in (False, True):
        with pytest.raises(openai.BadRequestError):
            served.ask("a" * LONGEST, stream=streams)
        list(served.ask("Hello", stream=streams))
    end = time.monotonic() + 20
    while left := [one for one in gc.get_objects() if isinstance(one, Answer)]:
        assert time.monotonic() < end, f"{len(left)} answers are kept"
        del left
        time.sleep(0.1)
        gc.collect()


def test_a_client_that_stops_reading_holds_nobody_up(pair, served):
    with stalled(served.address, 600):
        assert text(served.ask("Hello")) == reading_all(pair, said("Hello"))


@contextmanager
def stalled(address, tokens):
    """A client that asks for a long stream and reads no more than its first bytes."""
    body = json.dumps({"messages": said("Go on"), "stream": True, "max_tokens": tokens, "logit_bias": NO_END})
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(address)
        lines = ["POST /v1/chat/completions HTTP/1.1", "Host: here", "Content-Type: application/json"]
        client.sendall("\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode())
        assert client.recv(12) == b"HTTP/1.1 200"
        yield


REFUSED = [
    ("no JSON", b"{'messages': []}", 400, "the body is no JSON: Expecting property name"),
    ("no object", b"[]", 400, "body: Input should be a valid dictionary"),
    ("no messages", b"{}", 400, "messages: Field required"),
    ("no list", b'{"messages": 3}', 400, "messages: Input should be a valid list"),
    ("no text", b'{"messages": [{"role": "user", "content": 3}]}', 400, "messages.0.content: this is a number; write"),
    (
        "an image",
        b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        400,
        "messages.0.content.0.type: Input should be 'text'",
    ),
    ("too cold", b'{"messages": [{"role": "user", "content": "a"}], "temperature": -1}', 400, "temperature: "),
    ("no such key", b'{"messages": [{"role": "user", "content": "a"}], "tokens": 1}', 422, "{'tokens'}"),
    ("no call", b'{"messages": [{"role": "assistant", "tool_calls": [{}]}]}', 400, "cannot be answered (KeyError: "),
]


@pytest.mark.parametrize(("body", "status", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_request_that_cannot_be_meant_is_refused_in_one_line(served, body, status, message):
    given, told = served.post(body)
    assert given == status and message in told and "\n" not in told


def test_a_model_or_a_prompt_that_cannot_be_is_refused(served):
    with pytest.raises(openai.NotFoundError, match="no model 'other' here; there is 'tiny'"):
        served.ask("Hello", model="other")
    with pytest.raises(openai.BadRequestError, match=f"the prompt has 3018 tokens.* model's {LONGEST}"):
        served.ask("x" * 3000, stream=True)
    cut = served.ask("x" * (LONGEST - 30), tokens=100)
    assert (cut.usage.total_tokens, cut.choices[0].finish_reason) == (LONGEST, "length")


def test_the_command_serves_until_it_is_stopped(pair, tmp_path):
    """Also when an answer is under way whose client reads no more."""
    save_checkpoint(tmp_path / NAME, *pair)
    words = [sys.executable, "-m", "recurformer", "serve", str(tmp_path / NAME), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith(f"{NAME} at http://127.0.0.1:")
            port = int(line.split("/v1")[0].rpartition(":")[2])
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
            answer = client.chat.completions.create(model=NAME, messages=said("Hello"), max_tokens=4, temperature=0)
            assert text(answer) == reading_all(pair, said("Hello"), 4)
            with stalled(("127.0.0.1", port), 1900):
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 130
            assert "recurformer serve: stopped" in process.stderr.read()
        finally:
            process.kill()


def test_what_cannot_be_served_is_refused(tmp_path, monkeypatch, capsys):
    save_checkpoint(tmp_path / NAME, *open_random("byte", hidden_size=32, heads=4, kv_heads=2))
    serve = ["serve", str(tmp_path / NAME), "--port"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main([*serve, port]) == 1
    assert f"--host 127.0.0.1 --port {port}: cannot listen there" in capsys.readouterr().err
    assert main([*serve, "99999"]) == 1
    assert "--port 99999: cannot listen there" in capsys.readouterr().err
    assert main([*serve, "0"]) == 1
    assert "tiny: its tokenizer has no chat template" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "recurformer.cli.server")
    assert main([*serve, "0"]) == 1
    assert "uvicorn is missing: pip install '.[serve]'" in capsys.readouterr().err
