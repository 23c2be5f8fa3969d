"""A prompt's forward pass through the whole model, from an empty cache to the logits of the last token."""

from collections.abc import Iterator
from functools import partial

import torch
from transformers import DynamicCache

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.models import facts, inference, prompt, variants
from benchmarks.work import model_work

CONTEXTS = {"cpu": (256, 1024, 4096, 8192), "cuda": (1024, 4096, 16384, 61440)}


def contexts(options: Options) -> tuple[int, ...]:
    """Lengths in tokens, the shortest only in a quick run."""
    return CONTEXTS[options.device][: 1 if options.quick else None]


def _prefill(options: Options, beta: float, tokens: int) -> Call:
    model, input_ids = inference(options, beta), prompt(options, tokens)

    @torch.no_grad()
    def run() -> None:
        model(input_ids, past_key_values=DynamicCache(config=model.config), use_cache=True, logits_to_keep=1)

    return Call(run, model_work(model, 1, tokens))


def cases(options: Options) -> Iterator[Case]:
    """One case for each length."""
    for tokens in contexts(options):
        candidates = tuple(
            Candidate(name, partial(_prefill, options, beta, tokens), facts(options, beta))
            for name, beta in variants(options).items()
        )
        yield Case(f"{tokens} tokens", "backbone", candidates, {"batch": 1, "tokens": tokens})
