"""A prompt's forward pass through the whole model, from an empty cache to the logits of the last token."""

from collections.abc import Iterator
from functools import partial

import torch
from transformers import DynamicCache

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.models import Change, facts, inference, prompt, variants, windows

CONTEXTS = {"cpu": (256, 1024, 4096, 8192), "cuda": (1024, 4096, 16384, 61440)}

BATCHES = {"cpu": (1, 8), "cuda": (1, 8, 64)}
MOST_TOKENS = {"cpu": 8192, "cuda": 65536}
"""In all sequences of a batch together: a GPU holds two models of 7B and their caches, each twice for decoding."""


def sizes(options: Options) -> list[tuple[str, int, int]]:
    """Name of a case, sequences in its batch, tokens in each; the first only in a quick run."""
    found = [
        (f"{tokens} tokens" + (f", batch {batch}" if batch > 1 else ""), batch, tokens)
        for batch in BATCHES[options.device]
        for tokens in CONTEXTS[options.device]
        if batch * tokens <= MOST_TOKENS[options.device]
    ]
    return found[: 1 if options.quick else None]


def _prefill(options: Options, change: Change, tokens: int, batch: int) -> Call:
    model, input_ids = inference(options, change), prompt(options, tokens, batch)

    @torch.no_grad()
    def run() -> None:
        model(input_ids, past_key_values=DynamicCache(config=model.config), use_cache=True, logits_to_keep=1)

    return Call(run)


def cases(options: Options) -> Iterator[Case]:
    """One case for each batch and length."""
    for case, batch, tokens in sizes(options):
        candidates = tuple(
            Candidate(name, partial(_prefill, options, change, tokens, batch), facts(options, change))
            for name, change in (variants(options) | windows(options)).items()
        )
        yield Case(case, "backbone", candidates, {"batch": batch, "tokens": tokens})
