"""Time per step of greedy decoding after a context of random tokens; one case for each way to decode."""

from collections.abc import Iterator
from functools import partial

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.decoding import DECODERS, STEPS
from benchmarks.models import facts, inference, prompt, variants
from benchmarks.topics.prefill import sizes


def _decode(options: Options, beta: float, tokens: int, batch: int, how: str) -> Call:
    model = inference(options, beta)
    decoder = DECODERS[how](model, prompt(options, tokens, batch))
    return Call(decoder.run, before=decoder.renew, units=STEPS)


def cases(options: Options) -> Iterator[Case]:
    """One case for each batch, length of the context and way to decode.

    On a processor a step's memory is not measured: each candidate would read its context once more, for a copy of one
    layer's keys, which is what a step takes.
    """
    memory = options.device == "cuda"
    for case, batch, tokens in sizes(options):
        for how in DECODERS:
            candidates = tuple(
                Candidate(name, partial(_decode, options, beta, tokens, batch, how), facts(options, beta))
                for name, beta in variants(options).items()
            )
            yield Case(f"{case}{how}", "backbone", candidates, {"batch": batch, "tokens": tokens}, memory=memory)
