"""Time per token of greedy decoding at batch 1, from a context of random tokens."""

from collections.abc import Iterator
from functools import partial

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.decoding import DECODERS, STEPS, fill, held_bytes
from benchmarks.models import facts, prompt, variant, variants
from benchmarks.topics.prefill import contexts
from benchmarks.work import model_work


def _decode(options: Options, beta: float, tokens: int, decoder: str) -> Call:
    model = variant(options, beta)
    cache = fill(model, prompt(options, tokens))
    decoding = DECODERS[decoder](model, cache)
    work = model_work(model, 1, 1, seen=tokens, cache_bytes=held_bytes(cache))
    return Call(decoding.run, work, before=decoding.renew, units=STEPS)


def cases(options: Options) -> Iterator[Case]:
    """One case for each length of the context."""
    for tokens in contexts(options):
        candidates = tuple(
            Candidate(name + decoder, partial(_decode, options, beta, tokens, decoder), facts(options, beta))
            for name, beta in variants(options).items()
            for decoder in DECODERS
        )
        yield Case(f"{tokens} tokens", "backbone", candidates, {"batch": 1, "tokens": tokens})
