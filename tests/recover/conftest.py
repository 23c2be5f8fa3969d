import shutil
import sys
from pathlib import Path

import pytest
from adapt_world import command, write_world

from recurformer.cli.main import main


@pytest.fixture(scope="session")
def adapted(tmp_path_factory):
    """A folder with the backbone, its texts and, in `out`, the result of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("adapted")
    write_world(folder)
    assert main(command(folder)) == 0
    return folder


@pytest.fixture
def quick(monkeypatch):
    """Runs draw no pictures, as without matplotlib, time models once, and count caches of short texts."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("recurformer.recover.adapt.REPETITIONS", 1)
    monkeypatch.setattr("recurformer.recover.adapt.CACHE_LENGTHS", {"short": 100, "longer": 400})


@pytest.fixture
def world(adapted, quick, tmp_path):
    """A copy of the backbone and its texts, without the result."""
    return Path(shutil.copytree(adapted, tmp_path / "world", ignore=shutil.ignore_patterns("out")))
