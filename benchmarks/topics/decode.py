"""Time per token of greedy decoding at batch 1, after a context of random tokens; one case for each way to decode."""

from collections.abc import Iterator
from functools import partial

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.decoding import DECODERS, STEPS, held_bytes
from benchmarks.models import facts, inference, prompt, variants
from benchmarks.topics.prefill import contexts
from benchmarks.work import model_work


def _decode(options: Options, beta: float, tokens: int, how: str) -> Call:
    model = inference(options, beta)
    decoder = DECODERS[how](model, prompt(options, tokens))
    work = model_work(model, 1, 1, seen=tokens, cache_bytes=held_bytes(decoder))
    return Call(decoder.run, work, before=decoder.renew, units=STEPS)


def cases(options: Options) -> Iterator[Case]:
    """One case for each length of the context and way to decode."""
    for tokens in contexts(options):
        for how in DECODERS:
            candidates = tuple(
                Candidate(name, partial(_decode, options, beta, tokens, how), facts(options, beta))
                for name, beta in variants(options).items()
            )
            yield Case(f"{tokens} tokens{how}", "backbone", candidates, {"batch": 1, "tokens": tokens})
