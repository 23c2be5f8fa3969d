"""The work of jobs that measure a device at the sizes that it takes, with random weights in bfloat16."""

from dataclasses import replace
from math import inf, sqrt
from typing import Any

from recurformer.measure.trials import TIMED_SHARE
from recurformer.plan.resources import DEVICES, operations
from recurformer.plan.shapes import Shape
from recurformer.plan.training_memory import BF16
from recurformer.plan.work import Work
from recurformer.plan.work_common import Names, Study, model_of, work_of

TRIALS = 6
"""Prefills of about the longest length before the search ends, where the memory model is wrong by up to a tenth: 5.4 on
average (`recurformer.measure.trials.search`, simulated)."""
ENDS = 4
"""Chunks, of average attention, that cost what the first one and the last two do, which attend to twice as much."""
MAMBA_VALUES = 10.0
"""Numbers of each token and channel that a Mamba block holds at once while it reads, by Llama2-7B's memory model."""


@work_of("longest_input")
def longest_input(study: Study, names: Names) -> Work:
    """A search by prefills; each fills the card, by definition, or as much of it as the study tries at most."""
    settings = study["caches"]
    work = _drawn(study, names)
    maximum = settings["search"]["maximum"]
    tokens = min(maximum, longest_tokens(work.shape, work.beta, names["protocol"], work.filled))
    if names["protocol"] == "chunked":
        read = min(1.0, ENDS * settings["sizes"]["chunk"] / tokens)
        return replace(work, tokens=tokens, sequences=read * (1 if tokens == maximum else TRIALS))
    most = min(maximum, _tokens_within(settings["search"]["prefill_minutes"], replace(work, tokens=tokens), study))
    tokens = min(tokens, most)
    return replace(work, tokens=tokens, sequences=1 if tokens == most else TRIALS)


@work_of("cache_peak")
def cache_peak(study: Study, names: Names) -> Work:
    """A model for each share of replaced heads, and a prefill of each length by each; as if none replaced any."""
    lengths, longest = study["caches"]["sizes"]["lengths"], max(study["caches"]["sizes"]["lengths"])
    sequences = round(len(study["betas"]) * sum(lengths) / longest)
    return replace(_drawn(study, names), tokens=longest, sequences=sequences, models=len(study["betas"]))


def longest_tokens(shape: Shape, beta: float, protocol: str, memory_bytes: int) -> int:
    """Tokens of the longest prompt that a card takes: what weights leave, over what each token holds. The exact model,
    which needs the layers themselves, is `recurformer.measure.memory`; up to two million tokens this one is within an
    eighth of it.
    """
    cache = (1 - beta) * shape.cache_values
    feed_forward = 3 * shape.intermediate_size + 4 * shape.hidden_size
    mixing = beta * MAMBA_VALUES * shape.channels
    held = {"one_shot": max(feed_forward, mixing), "chunked": 0.0}[protocol]  # a chunk's needs do not grow
    room = memory_bytes - BF16 * shape.parameters(beta)
    return max(int(room / (BF16 * max(cache + held, 1))), 1)


def _tokens_within(limit: float | None, work: Work, study: Study) -> float:
    """Tokens of the longest prompt that is tried where reading one may take `limit` minutes: what the search finds by
    a shorter one (`recurformer.measure.trials.longest_within`).
    """
    if limit is None:
        return inf
    timed = replace(work, tokens=work.tokens // TIMED_SHARE, sequences=1)
    speed = DEVICES[study["device"]].speed[work.weight_bytes]
    return int(timed.tokens * sqrt(60 * limit * speed / operations(timed)))


def _drawn(study: Study, names: Names) -> Work:
    sizes: dict[str, Any] = model_of(study, names) | {"weight_bytes": BF16}
    return Work("draw", **sizes, filled=int(study["caches"]["sizes"]["memory_gib"] * 2**30))
