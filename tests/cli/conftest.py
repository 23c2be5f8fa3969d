import json

import pandas as pd
import pytest

from recurformer.cli.checkpoints import save_checkpoint
from recurformer.data.backbones import open_random
from recurformer.model.convert import convert

SHAPE = {"hidden_size": 32, "heads": 4, "kv_heads": 2, "initializer_range": 0.1}
RECIPE = {"learning_rate": 0.003, "log_every": 1, "save_every": 2, "task": {"hops": 4, "chains": 2, "pairs": 8}}
TEXT = "One short sentence. Another one follows it, much longer than the first was! A third? Then it ends. " * 8


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Folders of a tiny text model and a tiny HashHop model, original and converted, and a file of articles."""
    folder = tmp_path_factory.mktemp("world")
    for name, reads in (("text", "byte"), ("hashes", "hash")):
        model, tokenizer = open_random(reads, **SHAPE)
        save_checkpoint(folder / name, model, tokenizer)
        save_checkpoint(folder / f"{name}-converted", convert(model, [[0, 1], [0, 1, 2, 3]], dt_rank=4), tokenizer)
    articles = {"title": ["a", "b"], "text": [TEXT, TEXT[::-1]], "split": ["validation", "train"]}
    pd.DataFrame(articles).to_parquet(folder / "articles.parquet")
    return folder


@pytest.fixture(scope="session")
def training(world):
    """The words of a training of the converted HashHop model, which writes its three outputs into a folder."""

    def words(folder, **settings):
        files = ["--metrics", str(folder / "metrics.jsonl"), "--record", str(folder / "run.json"), "--name", "tiny"]
        where = [str(world / "hashes-converted"), str(folder / "trained"), *files]
        return ["train-hashhop", *where, "--settings", json.dumps(RECIPE | settings)]

    return words
