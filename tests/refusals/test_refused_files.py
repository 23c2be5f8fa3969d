"""Damaged and hostile files are refused in one line that names the file, and nothing in them is ever run."""

import pickle
import shlex

import pytest
from damages import Payload, both, code_of_its_own, columns, cut, edit, frame, heads, remove, weights_with_code, write

ARTICLES = "--articles articles.parquet"
ADAPT = "adapt backbone out --text"
PROFILE = f"profile backbone out.parquet {ARTICLES} --name x --settings '{{samples: 1, tokens: 16, window: 4}}'"
SELECT = "select profile.parquet out.json --beta 0.5"
CONVERT = "convert backbone out --heads heads.json --mixer window"

PERPLEXITY = (
    f"perplexity out.csv --before backbone --trained converted --name x --beta 1 --settings '{{tokens: 16}}' {ARTICLES}"
)
TRAIN = (
    "train converted out --metrics out.jsonl --name x --tokens 16"
    f" --settings '{{steps: 1, batch_size: 1, learning_rate: 1}}' {ARTICLES}"
)
SCORES = f"{SELECT} --settings '{{by: echo}}' --scores scores.parquet"
NEEDLE = f"needle backbone out.csv --original backbone {ARTICLES} --name x --subject evicted/h2o --match rows.csv"
MATCH = (
    f"{NEEDLE} --settings '{{lengths: [512], tasks: [passkey], samples: 1, depths: [0], change: {{budgets: [0.5]}}}}'"
)


ROWS = {
    # Parquet
    "articles cut": (PROFILE, cut("articles.parquet"), "articles.parquet: not a readable Parquet file"),
    "articles a pickle": (PROFILE, write("articles.parquet", pickle.dumps(Payload())), "articles.parquet: not a read"),
    "articles without text": (
        PROFILE,
        columns("articles.parquet", "text"),
        "articles.parquet: column 'text' is missing",
    ),
    "no training article": (
        PROFILE,
        frame("articles.parquet", title=["a"], text=["b"], split=["validation"]),
        "articles.parquet: no article in split 'train'",
    ),
    "profile without rr": (SELECT, columns("profile.parquet", "rr"), "profile.parquet: not a head profile"),
    "scores of words": (
        SCORES,
        frame("scores.parquet", by=["echo"], layer=[0], head=[0], score=["high"]),
        "scores.parquet: no head scores",
    ),
    # JSON of heads
    "heads missing": (CONVERT, remove("heads.json"), "heads.json: not a selection written by `recurformer select`"),
    "heads of words": (CONVERT, heads([["0"], []]), "heads is not a list of integers for each layer"),
    "heads true": (CONVERT, heads([[True], [0]]), "heads is not a list of integers for each layer"),
    "heads bytes": (CONVERT, write("heads.json", b"\xff\xfe"), "heads.json: not a selection"),
    "head out of range": (CONVERT, heads([[0], [4]]), "heads[1] names head 4, but the layer's query heads are 0 to 3"),
    "adapt, texts missing": (f"{ADAPT} nowhere.txt", lambda world: None, "nowhere.txt: cannot be read (No such file"),
    # checkpoints
    "weights cut": (PROFILE, cut("backbone/model.safetensors"), "backbone: not a readable checkpoint"),
    "weights a pickle": (PROFILE, weights_with_code("pytorch_model.bin"), "backbone: not a readable checkpoint"),
    "a pickle named safetensors": (
        PROFILE,
        weights_with_code("model.safetensors"),
        "backbone: not a readable checkpoint",
    ),
    "weights of another size": (
        PROFILE,
        edit("backbone/config.json", hidden_size=32),
        "backbone: not a readable check",
    ),
    "code beside the model": (PROFILE, code_of_its_own("config.json", "AutoConfig"), "backbone: not a readable"),
    "code beside the tokenizer": (
        PROFILE,
        both(
            code_of_its_own("tokenizer_config.json", "AutoTokenizer"),
            edit("backbone/tokenizer_config.json", tokenizer_class="Hostile"),
        ),
        "backbone: no readable tokenizer",
    ),
    "configuration missing": (
        PROFILE,
        remove("backbone/config.json"),
        "backbone: no checkpoint, there is no config.json",
    ),
    "configuration a list": (PROFILE, write("backbone/config.json", "[]"), "backbone: no readable tokenizer"),
    "unknown architecture": (
        PROFILE,
        edit("backbone/config.json", model_type="abacus"),
        "backbone: not a readable checkp",
    ),
    "tokenizer missing": (
        PROFILE,
        remove("backbone/tokenizer.json", "backbone/tokenizer_config.json"),
        "backbone: no readable tokenizer",
    ),
    "converted heads out of range": (
        PERPLEXITY,
        edit("converted/config.json", recurrent_heads=[[9], []]),
        "converted: not a readable checkpoint",
    ),
    "converted cut": (
        TRAIN,
        cut("converted/model.safetensors", 0.9),
        "converted: a safetensors file is corrupt or incomplete",
    ),
    # measurements
    "a CSV of bytes": (
        "figure figure4 mqar.csv --out o.svg",
        write("mqar.csv", b"\xff\xfe\x00"),
        "mqar.csv: unreadable",
    ),
    "a word among numbers": (
        "figure figure4 mqar.csv --out o.svg",
        write("mqar.csv", "beta,correct\n0.5,12\n0.5,many\n"),
        "mqar.csv: column correct must hold numbers, not 'many'",
    ),
    "an unknown output": (
        "figure figure6 profile.parquet --out out.gif",
        lambda world: None,
        "out.gif: a figure is written as .svg, .png",
    ),
    "a ledger whose evidence names no runs": (
        "trace table1/a --ledger l.json",
        write(
            "l.json",
            '{"counts": {}, "claims": [{"id": "a", "verdict": "not-run", "ours": "", "reason": "", "evidence": {}}]}',
        ),
        "l.json: not a ledger written by `recurformer cl",
    ),
    "a broken ledger": (
        "claims --ledger l.json",
        write("l.json", "[]"),
        "l.json: not a ledger written by `recurformer cl",
    ),
    "matched without ratio": (MATCH, frame("rows.csv", a=[1]), "--match rows.csv: has no column ratio"),
    "outputs below a file": (
        f"{SELECT}".replace("out.json", "heads.json/out.json"),
        lambda world: None,
        "cannot be written",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_file(row, refuses, world):
    words, damage, named = ROWS[row]
    damage(world)
    refuses(world, shlex.split(words), named)
    assert not (world / "PWN").exists()
