"""Speed of models beside each other: they take turns, so that other work of the machine hits all of them."""

import time
from collections.abc import Callable, Mapping

import pandas as pd
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


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
    for repetition in range(-1, repetitions):
        for name, model in models.items():
            seconds = _read_and_decode(model, input_ids.to(model.device), decoded)
            if repetition >= 0:
                rows += [(repetition, name, phase, tokens[phase], seconds[phase]) for phase in tokens]
        if progress is not None:
            progress(repetition + 2, repetitions + 1)
    return pd.DataFrame(rows, columns=["repetition", "model", "phase", "tokens", "seconds"])
