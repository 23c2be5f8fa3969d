"""Damaged and hostile files are refused in one line that names the file, and nothing in them is ever run."""

import json
import os
import pickle
import shlex

import pandas as pd
import pytest


class Payload:
    """A pickle that makes a file when it is read."""

    def __reduce__(self):
        return os.system, ("touch PWN",)


CODE = "from transformers import LlamaConfig\nopen('PWN', 'w')\n\n\nclass Hostile(LlamaConfig):\n    pass\n"


def cut(name, share=0.5):
    def damage(world):
        content = (world / name).read_bytes()
        (world / name).write_bytes(content[: int(len(content) * share)])

    return damage


def write(name, content=""):
    return lambda world: (world / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def remove(*names):
    return lambda world: [(world / name).unlink() for name in names]


def edit(name, **changes):
    def damage(world):
        settings = json.loads((world / name).read_text())
        (world / name).write_text(json.dumps(settings | changes))

    return damage


def heads(value):
    return edit("heads.json", heads=value)


def columns(name, drop):
    def damage(world):
        pd.read_parquet(world / name).drop(columns=drop).to_parquet(world / name)

    return damage


def frame(name, **values):
    def damage(world):
        rows = pd.DataFrame(values)
        rows.to_parquet(world / name) if name.endswith("parquet") else rows.to_csv(world / name, index=False)

    return damage


def weights_with_code(name):
    def damage(world):
        (world / "backbone/model.safetensors").unlink()
        (world / "backbone" / name).write_bytes(pickle.dumps(Payload()))

    return damage


def code_of_its_own(file, key):
    """The folder asks the library to run a module that lies in it."""

    def damage(world):
        (world / "backbone/hostile.py").write_text(CODE)
        edit(f"backbone/{file}", auto_map={key: "hostile.Hostile"}, model_type="hostile")(world)

    return damage


def both(*damages):
    return lambda world: [damage(world) for damage in damages]


ARTICLES = "--articles articles.parquet"
ADAPT = "adapt backbone out --text"
PROFILE = f"profile backbone out.parquet {ARTICLES} --name x --settings '{{samples: 1, tokens: 16, window: 4}}'"
SELECT = "select profile.parquet out.json --beta 0.5"
CONVERT = "convert backbone out --heads heads.json --mixer window"

PERPLEXITY = f"perplexity out.csv --before backbone --trained converted --name x --beta 1 {ARTICLES}"
PERPLEXITY += " --settings '{tokens: 16}'"
TRAIN = f"train converted out --metrics out.jsonl --name x --tokens 16 {ARTICLES}"
TRAIN += " --settings '{steps: 1, batch_size: 1, learning_rate: 1}'"
SCORES = f"{SELECT} --settings '{{by: echo}}' --scores scores.parquet"
MATCH = f"needle backbone out.csv --original backbone {ARTICLES} --name x --subject evicted/h2o --match rows.csv"
MATCH += " --settings '{lengths: [512], tasks: [passkey], samples: 1, depths: [0], change: {budgets: [0.5]}}'"
FIGURE = "figure figure4 mqar.csv --out o.svg"
UNREADABLE = "backbone: not a readable checkpoint"
CODE_OF_A_TOKENIZER = both(
    code_of_its_own("tokenizer_config.json", "AutoTokenizer"),
    edit("backbone/tokenizer_config.json", tokenizer_class="Hostile"),
)
NO_TOKENIZER = remove("backbone/tokenizer.json", "backbone/tokenizer_config.json")
VALIDATION_ALONE = frame("articles.parquet", title=["a"], text=["b"], split=["validation"])
WORDS = frame("scores.parquet", by=["echo"], layer=[0], head=[0], score=["high"])
NO_RUNS = '{"counts": {}, "claims": [{"id": "a", "verdict": "not-run", "ours": "", "reason": "", "evidence": {}}]}'


def nothing(world):
    """The files are good, the words are not."""


ROWS = {
    "articles cut": (PROFILE, cut("articles.parquet"), "articles.parquet: not a readable Parquet file"),
    "articles a pickle": (PROFILE, write("articles.parquet", pickle.dumps(Payload())), "articles.parquet: not a read"),
    "articles without text": (PROFILE, columns("articles.parquet", "text"), "articles.parquet: column 'text' is"),
    "no training article": (PROFILE, VALIDATION_ALONE, "articles.parquet: no article in split 'train'"),
    "profile without rr": (SELECT, columns("profile.parquet", "rr"), "profile.parquet: not a head profile"),
    "scores of words": (SCORES, WORDS, "scores.parquet: no head scores"),
    "heads missing": (CONVERT, remove("heads.json"), "heads.json: not a selection written by `recurformer select`"),
    "heads true": (CONVERT, heads([[True], [0]]), "heads is not a list of integers for each layer"),
    "head out of range": (CONVERT, heads([[0], [4]]), "heads[1] names head 4, but the layer's query heads are 0 to 3"),
    "adapt, texts missing": (f"{ADAPT} nowhere.txt", nothing, "nowhere.txt: cannot be read (No such file"),
    "weights cut": (PROFILE, cut("backbone/model.safetensors"), UNREADABLE),
    "weights a pickle": (PROFILE, weights_with_code("pytorch_model.bin"), UNREADABLE),
    "a pickle named safetensors": (PROFILE, weights_with_code("model.safetensors"), UNREADABLE),
    "weights of another size": (PROFILE, edit("backbone/config.json", hidden_size=32), UNREADABLE),
    "code beside the model": (PROFILE, code_of_its_own("config.json", "AutoConfig"), "backbone: not a readable"),
    "code beside the tokenizer": (PROFILE, CODE_OF_A_TOKENIZER, "backbone: no readable tokenizer"),
    "configuration missing": (PROFILE, remove("backbone/config.json"), "backbone: no checkpoint, there is no config"),
    "unknown architecture": (PROFILE, edit("backbone/config.json", model_type="abacus"), UNREADABLE),
    "tokenizer missing": (PROFILE, NO_TOKENIZER, "backbone: no readable tokenizer"),
    "converted, heads": (PERPLEXITY, edit("converted/config.json", recurrent_heads=[[9], []]), "converted: not a read"),
    "converted, cut": (TRAIN, cut("converted/model.safetensors", 0.9), "converted: a safetensors file is corrupt"),
    "a CSV of bytes": (FIGURE, write("mqar.csv", b"\xff\xfe\x00"), "mqar.csv: unreadable"),
    "a word among numbers": (FIGURE, write("mqar.csv", "beta,correct\n1,2\n1,many\n"), "numbers, not 'many'"),
    "an unknown output": ("figure figure6 profile.parquet --out out.gif", nothing, "out.gif: a figure is written as"),
    "evidence without runs": ("trace table1/a --ledger l.json", write("l.json", NO_RUNS), "l.json: not a ledger"),
    "a broken ledger": ("claims --ledger l.json", write("l.json", "[]"), "l.json: not a ledger"),
    "matched without ratio": (MATCH, frame("rows.csv", a=[1]), "--match rows.csv: has no column ratio"),
    "outputs below a file": (SELECT.replace("out.json", "heads.json/out.json"), nothing, "cannot be written"),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_file(row, refuses, world):
    words, damage, named = ROWS[row]
    damage(world)
    refuses(world, shlex.split(words), named)
    assert not (world / "PWN").exists()
