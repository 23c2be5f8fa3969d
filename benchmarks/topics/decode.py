"""Time per step of greedy decoding after a context of random tokens."""

import copy
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.models import facts, inference, prompt, variants
from benchmarks.topics.prefill import sizes

STEPS = 8
"""Tokens decoded in one run."""


@torch.no_grad()
def fill(model: PreTrainedModel, input_ids: Tensor) -> DynamicCache:
    """The cache after a prompt."""
    cache = DynamicCache(config=model.config)
    model(input_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


class Decoder:
    """One forward pass of the model after the other, as stock generate() calls it.

    Args:
        model: in evaluation mode.
        filled: cache of the context; it stays as it is where `renew` is called before each run.
        batch: sequences in it.
    """

    def __init__(self, model: PreTrainedModel, filled: DynamicCache, batch: int):
        self.model, self.filled, self.batch = model, filled, batch
        self.cache = filled

    def renew(self) -> None:
        """Start again after the context."""
        self.cache = copy.deepcopy(self.filled)

    @torch.no_grad()
    def run(self) -> None:
        """Decode `STEPS` tokens of every sequence."""
        token = torch.zeros(self.batch, 1, dtype=torch.long, device=self.model.device)
        for _ in range(STEPS):
            output = self.model(token, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
            token = output.logits[:, -1].argmax(-1, keepdim=True)


def _decode(options: Options, beta: float, tokens: int, batch: int) -> Call:
    model = inference(options, beta)
    decoder = Decoder(model, fill(model, prompt(options, tokens, batch)), batch)
    return Call(decoder.run, before=decoder.renew, units=STEPS)


def cases(options: Options) -> Iterator[Case]:
    """One case for each batch and length of the context.

    On a processor a step's memory is not measured: each candidate would read its context once more, for a copy of one
    layer's keys, which is what a step takes.
    """
    memory = options.device == "cuda"
    for case, batch, tokens in sizes(options):
        candidates = tuple(
            Candidate(name, partial(_decode, options, beta, tokens, batch), facts(options, beta))
            for name, beta in variants(options).items()
        )
        yield Case(case, "backbone", candidates, {"batch": batch, "tokens": tokens}, memory=memory)
