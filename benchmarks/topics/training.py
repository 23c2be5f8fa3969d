"""One training step: forward, backward, AdamW with the groups of the package's own training.

On a processor only: the gradients and moments of two 7B models fit no card.
"""

import copy
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.models import Change, facts, prompt, variant, variants
from recurformer.train.optimiser import parameter_groups

LENGTHS = (128, 1024)
BETAS = (0.5,)


def _step(options: Options, change: Change, tokens: int) -> Call:
    model, input_ids = copy.deepcopy(variant(options, change)).train(), prompt(options, tokens)
    optimizer = torch.optim.AdamW(parameter_groups(model, 1e-5, 1e-5, 0.01))

    def run() -> None:
        model(input_ids, labels=input_ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Call(run)


def cases(options: Options) -> Iterator[Case]:
    """One case for each length of a training window."""
    if options.device != "cpu":
        return
    for tokens in LENGTHS[: 1 if options.quick else None]:
        candidates = tuple(
            Candidate(name, partial(_step, options, change, tokens), facts(options, change))
            for name, change in variants(options, BETAS).items()
        )
        yield Case(f"{tokens} tokens", "backbone", candidates, {"batch": 1, "tokens": tokens})
