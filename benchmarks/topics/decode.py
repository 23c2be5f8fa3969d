"""Time per step of greedy decoding after a context of random tokens."""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.models import Change, facts, in_half, inference, prompt, stock, variants, windows
from benchmarks.topics.prefill import CONTEXTS, MOST_TOKENS, sizes
from recurformer.measure.cache import cache_tensors

STEPS = 8
"""Tokens decoded in one run."""
BATCHES = {
    "cpu": [(f"{tokens} tokens, batch 8", 8, tokens) for tokens in CONTEXTS["cpu"] if 8 * tokens > MOST_TOKENS["cpu"]],
    "cuda": [],
}
"""Cases that prefill does not have, because they would take too long there."""
READING = "reading alone"
"""The least time of a token of the last bfloat16 candidate: that of reading its weights and its cache."""


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


def _decode(options: Options, make: Callable[[], PreTrainedModel], tokens: int, batch: int) -> Call:
    model = make()
    cache = fill(model, prompt(options, tokens))
    cache.batch_repeat_interleave(batch)  # the same context in every row says nothing to the clock
    decoder = Decoder(model, cache, batch)
    return Call(decoder.run, before=decoder.renew, units=STEPS)


def _candidate(
    options: Options, tokens: int, batch: int, name: str, make: Callable[..., PreTrainedModel], *change: Change
) -> Candidate:
    """A model that `make(options, *change)` makes."""
    call = partial(_decode, options, partial(make, options, *change), tokens, batch)
    return Candidate(name, call, facts(options, *change or (0.0,)))


def _reading(options: Options, tokens: int) -> Call:
    """Read as many bytes as a token of the last of `variants` in bfloat16 must: its weights and its cache, once."""
    model = in_half(options, list(variants(options).values())[-1])
    cache = fill(model, prompt(options, tokens))
    held = sum(x.nbytes for _, _, x in cache_tensors(cache)) + sum(p.nbytes for p in model.parameters())
    numbers = torch.ones(held // 4)

    def run() -> None:
        for _ in range(STEPS):
            numbers.sum()

    return Call(run, units=STEPS)


def cases(options: Options) -> Iterator[Case]:
    """One case for each batch and length of the context; on a processor also what is quickest, beside the library.

    On a processor a step's memory is not measured: each candidate would read its context once more, for a copy of one
    layer's keys, which is what a step takes.
    """
    memory = options.device == "cuda"
    for case, batch, tokens in [*sizes(options), *(() if options.quick else BATCHES[options.device])]:
        changes, shared = variants(options) | windows(options), {"batch": batch, "tokens": tokens}
        make = partial(_candidate, options, tokens, batch)
        folded = tuple(make(name, inference, change) for name, change in changes.items())
        yield Case(case, "backbone", folded, shared, memory=memory)
        if options.device == "cpu" and batch == 1:
            half = tuple(
                make(f"{name}, bfloat16", in_half, change)
                for name, change in (windows(options) | variants(options)).items()
            )
            # claims about a β compare with the backbone, not with the library's
            half = tuple(replace(one, facts={**one.facts, "beta": math.nan}) for one in half)
            limit = Candidate(READING, partial(_reading, options, tokens), {"model": half[-1].facts["model"]})
            yield Case(f"{case}, quickest", "stock", (make("stock", stock), *half, limit), shared, memory=False)
