"""The measurements of `adapt`, as JSON: quality, passkeys, cache and speed of a model beside its original."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.data.interval import mean_interval
from recurformer.measure.cache import count_cache, meta_twin
from recurformer.measure.device import speed_rows
from recurformer.measure.needle import needle_rows
from recurformer.recover.quality import quality_rows
from recurformer.recover.recipe import Recipe

Progress = Callable[[int, int], None] | None


def quality_of(
    original: PreTrainedModel, model: PreTrainedModel, windows: Tensor, progress: Progress = None
) -> dict[str, Any]:
    """Perplexity and divergence (KL to the original, nats per token), each with its 95 % interval over windows."""
    rows = quality_rows(original, model, windows, progress)
    likelihood, distance = (mean_interval(rows[name].to_numpy()) for name in ("negative_log_likelihood", "divergence"))
    divergence, low, high = (max(value, 0.0) for value in distance)  # rounding leads below 0 where nothing changed
    return {
        "windows": len(rows),
        "perplexity": math.exp(likelihood.mean),
        "perplexity_interval": [math.exp(likelihood.low), math.exp(likelihood.high)],
        "divergence": divergence,
        "divergence_interval": [low, high],
    }


def passkeys_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    original: PreTrainedConfig,
    texts: Sequence[str],
    recipe: Recipe,
    seed: int = 0,
    progress: Progress = None,
) -> list[dict[str, Any]]:
    """For each length: length, keys found and keys asked; or length and the reason why there is no such prompt."""
    counts: list[dict[str, Any]] = []
    for length in recipe.passkey_lengths:
        grid = {length: {"passkey": recipe.passkey_samples}}
        try:
            rows = needle_rows(model, tokenizer, original, texts, grid=grid, seed=seed, progress=progress)
        except ValueError as error:  # a tokenizer of small pieces needs more tokens for the bare question
            counts.append({"length": length, "reason": str(error)})
        else:
            counts.append({"length": length, "found": int(rows.correct.sum()), "asked": int(rows.queries.sum())})
    return counts


def cache_bytes_of(
    original: PreTrainedModel, converted: PreTrainedModel, dtype: torch.dtype, lengths: Sequence[int]
) -> list[dict[str, int]]:
    """Cache bytes of both models after so many tokens, counted from the cache objects of models of type `dtype`."""
    before, after = (meta_twin(model).to(dtype) for model in (original, converted))  # type: ignore[arg-type]

    def size(model: PreTrainedModel, length: int) -> int:
        return int(count_cache(model, length).bytes.sum())

    return [{"length": length, "original": size(before, length), "adapted": size(after, length)} for length in lengths]


def speed_of(
    original: PreTrainedModel, converted: PreTrainedModel, window: Tensor, recipe: Recipe, progress: Progress = None
) -> list[dict[str, Any]]:
    """For prefill and decode: phase, tokens, median tokens per second of both, and the median ratio of a round."""
    decoded = min(recipe.decoded, window.shape[1] // 2)
    models = {"original": original, "adapted": converted}
    rows = speed_rows(models, window, decoded=decoded, repetitions=recipe.repetitions, progress=progress)
    speeds = []
    for phase, group in rows.groupby("phase", sort=False):
        seconds = group.pivot(index="repetition", columns="model", values="seconds")
        tokens = int(group.tokens.iloc[0])
        medians = {name: tokens / float(seconds[name].median()) for name in models}
        ratio = float((seconds["original"] / seconds["adapted"]).median())
        speeds.append({"phase": phase, "tokens": tokens, **medians, "ratio": ratio})
    return speeds
