import json

import pytest

from recurformer.data.backbones import make_random
from recurformer.data.tokenizers import hash_tokenizer
from recurformer.model.convert import convert

SHAPE = {"architecture": "llama", "hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "seed": 0}
RECIPE = {"learning_rate": 0.003, "log_every": 1, "save_every": 2, "task": {"hops": 4, "chains": 2, "pairs": 8}}


@pytest.fixture(scope="session")
def training(tmp_path_factory):
    """The words of a training of a tiny converted model, which writes its three outputs into a folder."""
    model, tokenizer = tmp_path_factory.mktemp("backbone") / "converted", hash_tokenizer()
    convert(make_random(**SHAPE, vocab_size=len(tokenizer)), [[0, 1], [0, 1, 2, 3]], dt_rank=4).save_pretrained(model)
    tokenizer.save_pretrained(model)

    def words(folder, **settings):
        files = ["--metrics", str(folder / "metrics.jsonl"), "--record", str(folder / "run.json"), "--name", "tiny"]
        return [
            "train-hashhop",
            str(model),
            str(folder / "trained"),
            *files,
            "--settings",
            json.dumps(RECIPE | settings),
        ]

    return words
