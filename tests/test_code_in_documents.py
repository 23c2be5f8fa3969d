"""The code blocks of the documents run as they stand: one document, one folder, from its first block to its last.

`MODEL`, `OUT` and `a.txt` are tiny here. A word of a block is replaced only where `REPLACED` says so, and a block is
left out only where `ELSEWHERE` says who runs it.
"""

import json
import shutil

import numpy as np
import pytest
import torch

import recurformer
from recurformer.cli.checkpoints import save_checkpoint
from recurformer.data.backbones import open_random
from tests.snippets import ROOT, Block, blocks, run

DOCUMENTS = ("docs/tutorial.md", "docs/models.md", "docs/adapt.md", "docs/studies.md", "README.md")
DRY_RUN = "snakemake --dry-run --quiet=all "
REPLACED = {
    "docs/tutorial.md": {"--minutes 1": "--minutes 0.02", "range(600)": "range(20)"},
    "docs/models.md": {
        "--tasks own": "--tasks own --device cpu --limit 2",
        "max_steps=100": "max_steps=2, use_cpu=True, report_to=[]",
    },
    "docs/adapt.md": {
        "cache=0.25, minutes=30": "cache=0.6, minutes=0.02, tokens=64",
        "4096": "64",
        "[16, 64, 256, 1024, 2048]": "[4, 16]",
    },
    "docs/studies.md": {"snakemake ": DRY_RUN},
    "README.md": {
        "FILES... --cache 0.125 --tokens 4096": "a.txt b.txt --cache 0.6 --tokens 64",
        "FILES... --mixer mamba --minutes 30": "a.txt b.txt --mixer mamba --minutes 0.02 --tokens 64",
        "snakemake ": DRY_RUN,
        "cpu/results results/record": "cpu/results recorded/cpu/results",
        "recurformer runs": "recurformer runs recorded/cpu",
    },
}
"""What is large, slow or from a network, and what stands for it here."""
ELSEWHERE = {
    ("README.md", "pip install"): "tests/cli/test_light.py runs what the first line installs",
    ("README.md", "make smoke"): "continuous integration calls smoke and test, the recorded run is of results",
    ("docs/models.md", "recurformer serve"): "tests/cli/test_serve.py: it runs until it is stopped",
    ("docs/models.md", "from openai"): "tests/cli/test_serve.py, where a server answers",
    ("docs/studies.md", "recurformer backbone"): "tests/data/test_backbones.py opens the model where its file is kept",
    ("docs/studies.md", "module recurformer"): "tests/workflow/test_changed_and_imported.py",
}
"""(document, beginning of a block) -> who runs it."""


class Rows(torch.utils.data.Dataset):
    """What a reader would train on."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        ids = torch.arange(12) + 3 + index
        return {"input_ids": ids, "labels": ids}


def write_texts(folder):
    words, rng = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "."), np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 400)) for _ in range(2)]
    for name, text in zip(("a.txt", "b.txt"), texts, strict=True):
        (folder / name).write_text(text)
    return texts


@pytest.fixture
def names(tmp_path, monkeypatch):
    """A reader's folder, and the names that a document takes for granted."""
    model, tokenizer = open_random("byte", hidden_size=16, heads=4, kv_heads=2, head_dim=4, initializer_range=0.3)
    save_checkpoint(tmp_path / "MODEL", model, tokenizer)
    converted = recurformer.convert(model, [[0, 1], [2, 3]])
    converted.save_pretrained(tmp_path / "OUT")
    tokenizer.save_pretrained(tmp_path / "OUT")
    texts = write_texts(tmp_path)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": f"row {row}"}) + "\n" for row in range(3)))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for name in ("docs", "config", "workflow", "profiles", "recorded", "Snakefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("recurformer.recover.adapt.CACHE_LENGTHS", {"short": 100, "longer": 400})
    return {"dataset": Rows(), "long_texts": texts}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_its_blocks_run(document, names, tmp_path):
    unused = set(REPLACED[document])
    left_out = {start for place, start in ELSEWHERE if place == document}
    if document != "docs/models.md":
        shutil.rmtree("OUT")  # the document makes it
    for language, code in blocks(document):
        started = [start for start in left_out if code.startswith(start)]
        left_out.difference_update(started)
        if started:
            continue
        for old in [old for old in REPLACED[document] if old in code]:
            unused.discard(old)
            code = code.replace(old, REPLACED[document][old])  # noqa: PLW2901
        run(Block(language, code), names)
    assert not unused and not left_out
