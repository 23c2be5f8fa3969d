"""Head profiling, and the prices of windows and bits, beside a plain forward pass over the same text."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.models import backbone, facts, prompt
from recurformer.heads.price import key_centers, price
from recurformer.heads.profile import profile_heads
from recurformer.model.packed import BITS
from recurformer.recover.budget import SINKS, window_sizes

TOKENS, QUICK_TOKENS = 1024, 256
PRICED_TOKENS = 4096


def cases(options: Options) -> Iterator[Case]:
    """One window, without the language-model head, which no profile needs; and one text, whose length budgets count."""
    tokens = QUICK_TOKENS if options.quick else TOKENS
    priced_tokens = QUICK_TOKENS if options.quick else PRICED_TOKENS

    def plain(tokens: int) -> Call:
        model, input_ids = backbone(options), prompt(options, tokens)
        run = torch.no_grad()(lambda: model.base_model(input_ids, use_cache=False))
        return Call(run)

    def profiled() -> Call:
        model, input_ids = backbone(options), prompt(options, tokens)
        return Call(lambda: profile_heads(model, input_ids, window=tokens // 10))

    def priced() -> Call:
        model, input_ids = backbone(options), prompt(options, priced_tokens)
        windows, centers = window_sizes(priced_tokens), key_centers(model, input_ids)
        return Call(lambda: price(model, input_ids, windows, BITS, sink_tokens=SINKS, centers=centers))

    for case, length, name, measured in (
        (f"{tokens} tokens", tokens, "profile_heads", profiled),
        (f"prices of {priced_tokens} tokens", priced_tokens, "price", priced),
    ):
        candidates = (
            Candidate("forward", partial(plain, length), facts(options, 0.0)),
            Candidate(name, measured, facts(options, 0.0)),
        )
        yield Case(case, "forward", candidates, {"batch": 1, "tokens": length})
