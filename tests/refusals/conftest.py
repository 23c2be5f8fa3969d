"""What every refusal has in common, and a small world of good files to be damaged."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from recurformer.cli.main import main


def snapshot(folder):
    """Every folder and the size of every file, but for what a training keeps to go on from."""
    places = {path.relative_to(folder): path for path in Path(folder).rglob("*")}
    kept = {place for place in places if any(part.endswith(".checkpoints") for part in place.parts)}
    return {place: path.is_file() and path.stat().st_size for place, path in places.items() if place not in kept}


@pytest.fixture
def refuses(capfd, monkeypatch):
    """A command is refused with one line that names `named`, and leaves its folder as it was."""

    def check(folder, words, named, code=1):
        monkeypatch.chdir(folder)
        before = snapshot(folder)
        capfd.readouterr()
        try:
            found = main([str(word) for word in words])
        except SystemExit as end:
            found = end.code
        said = capfd.readouterr().err
        assert found == code, said
        assert "Traceback" not in said
        assert len(said.splitlines()) == 1, said
        assert named in said
        assert snapshot(folder) == before
        return said

    return check


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """Articles, a tiny backbone, its head profile, a choice of heads and the converted model."""
    from recurformer.cli.checkpoints import save_checkpoint
    from recurformer.data.backbones import open_random
    from recurformer.model.convert import convert

    folder = tmp_path_factory.mktemp("good")
    model, tokenizer = open_random(tokenizer="byte", hidden_size=16, heads=4, kv_heads=2, head_dim=4)
    save_checkpoint(folder / "backbone", model, tokenizer)
    text = "The quick brown fox jumps over the lazy dog. " * 40
    rows = [(f"title {number}", text, "validation" if number else "train") for number in range(2)]
    pd.DataFrame(rows, columns=["title", "text", "split"]).to_parquet(folder / "articles.parquet")
    words = "profile backbone profile.parquet --articles articles.parquet --name tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*words.split(), "--settings", "{samples: 2, tokens: 32, window: 4}"]) == 0
        assert main(["select", "profile.parquet", "heads.json", "--beta", "0.5"]) == 0
    heads = json.loads((folder / "heads.json").read_text())["heads"]
    save_checkpoint(folder / "converted", convert(model, heads, "window"), tokenizer)
    return folder


@pytest.fixture
def world(good, tmp_path):
    """A copy of the good files."""
    shutil.copytree(good, tmp_path / "world")
    return tmp_path / "world"
