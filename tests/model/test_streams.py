"""Two branches side by side: in order on the CPU, forked and joined where a graph is captured."""

from contextlib import contextmanager

import pytest
import torch

from recurformer.model import streams
from recurformer.model.streams import ROWS, forks, side_by_side


class Stream:
    def __init__(self, name, events):
        self.name, self.events = name, events

    def wait_stream(self, other):
        self.events.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def fake_cuda(monkeypatch):
    """What the module asks of torch.cuda, as records of what happened in which order."""
    events = []
    main, side = Stream("main", events), Stream("side", events)

    @contextmanager
    def on(stream):
        events.append(f"on {stream.name}")
        yield
        events.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(streams, "_side_stream", lambda device: side)
    return events


def branches(events):
    return (lambda: events.append("first") or 1), (lambda: events.append("second") or 2)


def test_a_captured_pair_is_forked_and_joined(fake_cuda):
    assert side_by_side(*branches(fake_cuda), torch.device("cuda"), ROWS) == (1, 2)
    expected = ["side waits for main", "on side", "second", "off side", "first", "main waits for side"]
    assert fake_cuda == expected


def test_large_inputs_and_other_devices_run_in_order(fake_cuda):
    for device, rows in (("cuda", ROWS + 1), ("cpu", 1)):
        fake_cuda.clear()
        assert side_by_side(*branches(fake_cuda), torch.device(device), rows) == (1, 2)
        assert fake_cuda == ["first", "second"]


def test_nothing_forks_outside_a_capture(fake_cuda, monkeypatch):
    assert forks(torch.device("cuda"), 1)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert not forks(torch.device("cuda"), 1)
