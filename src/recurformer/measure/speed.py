"""Time of prefill and decoding, of models that take turns, so that other work of the machine hits all of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel

from recurformer.data.backbones import meta_model, random_model
from recurformer.measure.cache import count_cache
from recurformer.measure.memory import converted_twin
from recurformer.model.fused import folded

SPREAD = (0.1, 0.9)
"""Quantiles of the rounds' ratios between which a ratio of speeds is given."""


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@torch.no_grad()
def _read_and_decode(model: PreTrainedModel, input_ids: Tensor, decoded: int) -> dict[str, float]:
    """Seconds of a prefill and of the single steps after it. The steps read given tokens, so that all models do."""
    prompt, following = input_ids[:, :-decoded], input_ids[:, -decoded:]
    cache = DynamicCache(config=model.config)
    began = _now(model.device)
    model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
    prompt_end = _now(model.device)
    for token in following.split(1, dim=1):
        model(token, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return {"prefill": prompt_end - began, "decode": _now(model.device) - prompt_end}


def speed_rows(
    models: Mapping[str, PreTrainedModel],
    input_ids: Tensor,
    *,
    decoded: int,
    repetitions: int,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Time prefill and decoding of one text, in turns, after one round that does not count.

    By turns, other work of the machine hits all models. They are folded, as for any inference.

    Args:
        models: causal language models in evaluation mode, by their names.
        input_ids: (1, L), read as a prompt of L - decoded tokens and as many single tokens.
        decoded: single tokens, at least one and fewer than L.
        repetitions: rounds that count.
        progress: called with (rounds done, rounds).

    Returns:
        One row a measurement: repetition, model, phase ("prefill", "decode"), tokens, seconds.

    Raises:
        ValueError: `decoded` leaves no prompt or is not positive.
    """
    length = input_ids.shape[1]
    if not 0 < decoded < length:
        raise ValueError(f"decoded={decoded} must lie between 1 and {length - 1}, the tokens after the first")
    tokens = {"prefill": length - decoded, "decode": decoded}
    rows = []
    with ExitStack() as folds:
        for model in models.values():
            folds.enter_context(folded(model))
        for repetition in range(-1, repetitions):
            for name, model in models.items():
                seconds = _read_and_decode(model, input_ids.to(model.device), decoded)
                if repetition >= 0:
                    rows += [(repetition, name, phase, tokens[phase], seconds[phase]) for phase in tokens]
            if progress is not None:
                progress(repetition + 2, repetitions + 1)
    return pd.DataFrame(rows, columns=["repetition", "model", "phase", "tokens", "seconds"])


def measure_speed(
    config: PreTrainedConfig,
    name: str,
    betas: Sequence[float],
    lengths: Sequence[int],
    *,
    decoded: int,
    rounds: int,
    device: str,
    seed: int = 0,
    mamba: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Time prefills of each length and decoding after it, at batch 1, beside the original's: rows of bench.csv.

    Weights are random, for no time depends on them; the type is float32 on a processor and bfloat16 on CUDA.

    Args:
        config: of the unconverted model.
        name: written to the column `model`.
        betas: fractions of heads to replace; the original is always measured.
        lengths: tokens of a prompt.
        decoded: single tokens after it.
        rounds: in which all models take turns, after one that does not count.
        device: "cuda" or "cpu".
        seed: of the weights, and of the choice of heads.
        mamba: d_state, d_conv, expand, dt_rank for `convert`; its defaults when absent.
        progress: called with (rounds done, rounds), of all lengths.

    Returns:
        topic ("prefill", "decode"), model, device ("cpu" or a card's name), beta, batch, tokens, rounds, ratio (the
        original's time over the model's, median of the rounds' own), ratio_low and ratio_high (`SPREAD`),
        median_seconds (a decoded token's, or a prefill's), cache_bytes (after the prompt).
    """
    dtype, fractions = (torch.bfloat16 if device == "cuda" else torch.float32), sorted({0.0, *betas})
    place = torch.cuda.get_device_name() if device == "cuda" else device
    twins = {beta: converted_twin(meta_model(config, dtype), beta, seed, mamba) for beta in fractions}
    models = {str(beta): random_model(twin.config, seed, dtype, device) for beta, twin in twins.items()}
    generator, rows = torch.Generator().manual_seed(seed), []
    for done, length in enumerate(lengths):
        ids = torch.randint(config.vocab_size, (1, length + decoded), generator=generator)

        def report(rounds_done: int, of: int, before: int = done) -> None:
            if progress is not None:
                progress(before * of + rounds_done, len(lengths) * of)

        measured = speed_rows(models, ids, decoded=decoded, repetitions=rounds, progress=report)
        for topic, of_phase in measured.groupby("phase", sort=False):
            seconds = of_phase.pivot(index="repetition", columns="model", values="seconds")
            for beta in fractions:
                own = seconds[str(beta)]
                ratios = seconds["0.0"] / own
                low, high = ratios.quantile(SPREAD)
                values = (topic, name, place, beta, 1, length, rounds, ratios.median(), low, high)
                held = int(count_cache(twins[beta], length).bytes.sum())
                rows.append((*values, own.median() / (decoded if topic == "decode" else 1), held))
    columns = "topic model device beta batch tokens rounds ratio ratio_low ratio_high median_seconds cache_bytes"
    return pd.DataFrame(rows, columns=columns.split())
