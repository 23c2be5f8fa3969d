"""A tiny model and a few texts to adapt it on, and the command that does it."""

import numpy as np
import torch

from recurformer.cli.checkpoints import save_checkpoint
from recurformer.data.backbones import open_random

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", ".", "It", "is", "late", "!")
MINUTES = "60"
"""So long that the passes over the text, and no clock, limit the steps."""


def write_texts(folder, documents=6, words=60):
    """Text files of different random words."""
    rng = np.random.default_rng(0)
    for number in range(documents):
        (folder / f"text{number}.txt").write_text(" ".join(rng.choice(WORDS, words)))
    return sorted(map(str, folder.glob("text*.txt")))


def write_world(folder):
    """Backbone of weights that are large enough to say something."""
    model, tokenizer = open_random(
        tokenizer="byte", hidden_size=16, heads=4, kv_heads=2, head_dim=4, initializer_range=0.3
    )
    save_checkpoint(folder / "backbone", model.to(torch.bfloat16), tokenizer)
    return write_texts(folder)


def command(folder, *more, out="out", model="backbone"):
    """The words of the command; later flags win."""
    texts = sorted(map(str, folder.glob("text*.txt")))
    flags = ["--tokens", "64", "--minutes", MINUTES, "--mixer", "mamba", *more]
    return ["adapt", str(folder / model), str(folder / out), *flags, "--text", *texts]
