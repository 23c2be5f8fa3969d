"""An adaptation that is killed at drawn changes of files ends with the bytes of one that nobody disturbed."""

import random
import signal

import pytest
from adapt_world import command

from recurformer.cli.main import main
from tests.cli.test_kills import child, ended
from tests.one_thread import one_thread

__all__ = ["one_thread"]

CHANGES = 230  # of a run, and more; a later one that the seed draws would not be met
DRAWN = random.Random(18)
THREE_KILLS = [tuple(DRAWN.randrange(CHANGES // kill) for kill in (1, 2, 3)) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("numbers", THREE_KILLS, ids=str)
def test_it_ends_with_the_same_bytes(numbers, adapted, world, monkeypatch):
    monkeypatch.setattr("recurformer.recover.recipe.SAVE_SECONDS", 0.05)
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # its threads would not find torch's after a fork

    def run():
        assert main(command(world)) == 0

    assert ended(child(run, world, numbers[0])) == -signal.SIGKILL
    for number in numbers[1:]:
        ended(child(run, world, number))
    assert ended(child(run, world)) == 0
    assert (world / "out/model.safetensors").read_bytes() == (adapted / "out/model.safetensors").read_bytes()
    assert not (world / "out.checkpoints").exists()
