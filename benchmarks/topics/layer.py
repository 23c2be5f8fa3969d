"""One attention layer beside its conversion, prefill and decode; single heads are replaced: query groups are ragged."""

import copy
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from benchmarks.case import Call, Candidate, Case, Options
from benchmarks.models import fold
from recurformer.data.backbones import load_shape, random_model
from recurformer.heads.select import random_ranking, rank_heads
from recurformer.model.convert import convert

SHAPES = {"cpu": "smollm2-135m", "cuda": "llama2-7b"}
VARIANTS = {
    "backbone": (0.0, False),
    "beta 0.5": (0.5, False),
    "beta 0.5 folded": (0.5, True),
    "beta 0.9": (0.9, False),
    "beta 0.9 folded": (0.9, True),
}
"""Candidate -> beta, and whether products of weights take their place."""
TOKENS = {"cpu": 1024, "cuda": 4096}
QUICK_TOKENS = 256
STEPS = 32
"""Decode steps in one run."""


@cache
def _model(options: Options, beta: float, folds: bool) -> PreTrainedModel:
    """A model of a single layer: its rotary embedding and its cache come with it."""
    config = load_shape(SHAPES[options.device])
    config.num_hidden_layers, config.vocab_size = 1, 8
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    stock = random_model(config, dtype=options.dtype, device=options.device)
    heads = rank_heads(random_ranking(1, config.num_attention_heads), config.num_key_value_heads, beta, unit="head")
    torch.manual_seed(0)
    model = convert(stock, heads) if beta else stock
    return fold(model) if folds else model


def _attention(model: Any) -> Any:
    return model.base_model.layers[0].self_attn


class _Layer:
    """One layer's attention with inputs and a cache."""

    def __init__(self, options: Options, beta: float, folds: bool, tokens: int):
        self.model: Any = _model(options, beta, folds)
        hidden = self.model.config.hidden_size
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(1, tokens, hidden, generator=generator).to(options.device, options.dtype)
        self.tokens, self.cache = tokens, DynamicCache(config=self.model.config)

    @torch.no_grad()
    def mix(self, start: int, stop: int) -> torch.Tensor:
        """Run tokens [start, stop) through the layer, continuing the cache."""
        x = self.x[:, start - stop :]
        positions = torch.arange(start, stop, device=x.device).unsqueeze(0)
        embedded = self.model.base_model.rotary_emb(x, positions)
        mixed, _ = _attention(self.model)(
            x, position_embeddings=embedded, attention_mask=None, past_key_values=self.cache
        )
        return mixed


def _prefill(options: Options, beta: float, folds: bool, tokens: int) -> Call:
    layer = _Layer(options, beta, folds, tokens)

    def renew() -> None:
        layer.cache = DynamicCache(config=layer.model.config)

    return Call(lambda: layer.mix(0, tokens), before=renew)


def _decode(options: Options, beta: float, folds: bool, tokens: int) -> Call:
    layer = _Layer(options, beta, folds, tokens)
    layer.mix(0, tokens)
    filled = layer.cache

    def renew() -> None:
        layer.cache = copy.deepcopy(filled)

    def steps() -> None:
        for step in range(STEPS):
            layer.mix(tokens + step, tokens + step + 1)

    return Call(steps, before=renew, units=STEPS)


PHASES = {"prefill": _prefill, "decode": _decode}


def cases(options: Options) -> Iterator[Case]:
    """Prefill and decode of one layer, at one length."""
    tokens = QUICK_TOKENS if options.quick else TOKENS[options.device]
    for phase, make in PHASES.items():
        candidates = tuple(
            Candidate(name, partial(make, options, beta, folds, tokens), {"beta": beta})
            for name, (beta, folds) in VARIANTS.items()
        )
        facts = {"batch": 1, "tokens": tokens, "model": SHAPES[options.device], "heads": "random"}
        yield Case(f"{phase} {tokens} tokens", "backbone", candidates, facts)
