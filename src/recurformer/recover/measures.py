"""Measurements of a model beside its original: likelihood and divergence, passkeys, cache and speed; as JSON."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.data.interval import mean_interval
from recurformer.measure.cache import count_cache, meta_twin
from recurformer.measure.device import speed_rows
from recurformer.measure.needle import needle_rows
from recurformer.paper import CACHE_LENGTHS
from recurformer.recover.pair import Progress

PASSKEYS = {256: 2, 512: 2}
"""Length of a prompt in tokens -> prompts at each of five depths."""
LENGTHS = (512, 2048, 4096, 8192)
"""Tokens at which a model with a budget is measured, as far as it is adapted for them."""
FAR_PASSKEYS = 4
"""Prompts at each of five depths, at each of these lengths."""
DECODED = 32
"""Tokens, at most, over which the speed of decoding is measured."""
REPETITIONS = 5
"""Repetitions of each measurement of speed."""


def quality_of(rows: pd.DataFrame) -> dict[str, Any]:
    """Perplexity and divergence of `quality_rows`, each with its 95 % interval over windows; also of their parts."""
    values = ["negative_log_likelihood", "divergence"]
    sums = rows[values].mul(rows.predicted, axis=0).groupby(rows.window).sum()
    of_windows = sums.div(rows.groupby("window").predicted.sum(), axis=0)
    likelihood, distance = (mean_interval(of_windows[name].to_numpy()) for name in values)
    divergence, low, high = (max(value, 0.0) for value in distance)  # rounding leads below 0 where nothing changed
    quality = {
        "windows": len(of_windows),
        "perplexity": math.exp(likelihood.mean),
        "perplexity_interval": [math.exp(likelihood.low), math.exp(likelihood.high)],
        "divergence": divergence,
        "divergence_interval": [low, high],
    }
    if "stop" in rows:
        quality["parts"] = [
            {"stop": int(part["stop"].iloc[0]), **quality_of(part.drop(columns="stop"))}
            for _, part in rows.groupby("stop")
        ]
    return quality


def passkeys_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    original: PreTrainedConfig,
    texts: Sequence[str],
    seed: int = 0,
    progress: Progress = None,
    prompts: Mapping[int, int] = PASSKEYS,
) -> list[dict[str, Any]]:
    """For each length of `prompts`: length, keys found and keys asked; or length and the reason why there is no such
    prompt.
    """
    counts: list[dict[str, Any]] = []
    for length, samples in prompts.items():
        try:
            rows = needle_rows(
                model, tokenizer, original, texts, grid={length: {"passkey": samples}}, seed=seed, progress=progress
            )
        except ValueError as error:  # a tokenizer of small pieces needs more tokens for the bare question
            counts.append({"length": length, "reason": str(error)})
        else:
            counts.append({"length": length, "found": int(rows.correct.sum()), "asked": int(rows.queries.sum())})
    return counts


def cache_bytes_of(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    dtype: torch.dtype,
    lengths: Iterable[int] = tuple(CACHE_LENGTHS.values()),
) -> list[dict[str, int]]:
    """Cache bytes of both models after so many tokens, counted from the cache objects of models of type `dtype`."""
    before, after = (meta_twin(model).to(dtype) for model in (original, converted))  # type: ignore[arg-type]

    def size(model: PreTrainedModel, length: int) -> int:
        return int(count_cache(model, length).bytes.sum())

    return [{"length": length, "original": size(before, length), "adapted": size(after, length)} for length in lengths]


def speed_of(
    original: PreTrainedModel, converted: PreTrainedModel, window: Tensor, progress: Progress = None
) -> list[dict[str, Any]]:
    """For prefill and decode: phase, tokens, median tokens per second of both, and the median ratio of a round."""
    decoded = min(DECODED, window.shape[1] // 2)
    models = {"original": original, "adapted": converted}
    rows = speed_rows(models, window, decoded=decoded, repetitions=REPETITIONS, progress=progress)
    speeds = []
    for phase, group in rows.groupby("phase", sort=False):
        seconds = group.pivot(index="repetition", columns="model", values="seconds")
        tokens = int(group.tokens.iloc[0])
        medians = {name: tokens / float(seconds[name].median()) for name in models}
        ratio = float((seconds["original"] / seconds["adapted"]).median())
        speeds.append({"phase": phase, "tokens": tokens, **medians, "ratio": ratio})
    return speeds
