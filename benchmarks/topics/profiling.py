"""Head profiling beside a plain forward pass over the same windows."""

from collections.abc import Iterator

import torch

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.models import backbone, facts, prompt
from recurformer.heads.profile import profile_heads

TOKENS, QUICK_TOKENS = 1024, 256


def cases(options: Options) -> Iterator[Case]:
    """One window, without the language-model head, which no profile needs."""
    tokens = QUICK_TOKENS if options.quick else TOKENS

    def plain() -> Call:
        model, input_ids = backbone(options), prompt(options, tokens)
        run = torch.no_grad()(lambda: model.base_model(input_ids, use_cache=False))
        return Call(run)

    def profiled() -> Call:
        model, input_ids = backbone(options), prompt(options, tokens)
        return Call(lambda: profile_heads(model, input_ids, window=tokens // 10))

    candidates = (
        Candidate("forward", plain, facts(options, 0.0)),
        Candidate("profile_heads", profiled, facts(options, 0.0)),
    )
    yield Case(f"{tokens} tokens", "forward", candidates, {"batch": 1, "tokens": tokens})
