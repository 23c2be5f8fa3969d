"""Greedy writing with a model's own cache, for every evaluation whose answers are written."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, GenerationConfig, PreTrainedModel

from recurformer.data.datasets import pad_batch
from recurformer.measure.cache import held_bytes

NewCache = Callable[[], Cache]
MORE_TOKENS = 2
"""Tokens that an answer in words may have beyond those of the right answer. A model may divide the same text
differently. Only the next token shows whether a number or hash has ended."""


@torch.no_grad()
def generate_greedily(
    model: PreTrainedModel,
    prompts: Sequence[Tensor],
    limits: Sequence[int],
    pad_token_id: int,
    new_cache: NewCache | None = None,
    ends: bool = True,
) -> tuple[list[list[int]], float]:
    """The model's greedy answer to each prompt.

    The prompts are read once, with the logits of their last tokens only, and all answers grow together in one cache
    until the last of them has ended.

    Args:
        model: a causal language model, in evaluation mode.
        prompts: token ids (L,) each, preferably of like lengths.
        limits: the most tokens of each answer.
        pad_token_id: padding before shorter prompts and after answers that ended early.
        new_cache: makes the cache; None: the model makes its own.
        ends: whether an answer ends at the model's end of a text; else it has all the tokens.

    Returns:
        Token ids of each answer, and the bytes that the cache held after the prompts for each token of theirs, padding
        included.
    """
    batch = pad_batch([{"input_ids": prompt} for prompt in prompts], pad_token_id, side="left")
    batch = {key: value.to(model.device) for key, value in batch.items()}
    batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
    # nothing of the model's own configuration but its end: no sampling, no repetition penalty
    greedy = GenerationConfig(
        do_sample=False,
        max_new_tokens=max(limits),
        pad_token_id=pad_token_id,
        eos_token_id=model.generation_config.eos_token_id if ends else None,
    )
    bytes_per_token: list[float] = []

    def measure(module: Any, arguments: Any, output: Any) -> None:
        if not bytes_per_token:  # the first forward pass reads the prompts
            bytes_per_token.append(held_bytes(output.past_key_values, batch["input_ids"].numel(), module.dtype))

    cache_argument = {} if new_cache is None else {"past_key_values": new_cache()}
    own, model.generation_config = model.generation_config, greedy
    hook = model.register_forward_hook(measure)
    try:
        written: Tensor = model.generate(**batch, **cache_argument)  # type: ignore[operator]
    finally:
        hook.remove()
        model.generation_config = own
    answers = written[:, batch["input_ids"].shape[1] :].tolist()
    return [answer[:limit] for answer, limit in zip(answers, limits, strict=True)], bytes_per_token[0]


def write_answers(
    model: PreTrainedModel,
    prompts: Sequence[Tensor],
    limits: Sequence[int],
    pad_token_id: int,
    batch_size: int,
    new_cache: NewCache | None,
    progress: Callable[[int, int], None] | None,
    before: int,
    total: int,
) -> tuple[list[list[int]], list[float]]:
    """The model's greedy answers to many prompts. Prompts of similar length share a batch, to save padding.

    `progress` is called with (prompts done, `total`); `before` these, others were done.

    Returns:
        As of `generate_greedily`: token ids of each answer, and the bytes held, one value a batch.
    """
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    answers: list[list[int]] = [[] for _ in order]
    bytes_per_token: list[float] = []
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        batch, batch_limits = [prompts[index] for index in indices], [limits[index] for index in indices]
        written, batch_bytes = generate_greedily(model, batch, batch_limits, pad_token_id, new_cache)
        bytes_per_token.append(batch_bytes)
        for index, answer in zip(indices, written, strict=True):
            answers[index] = answer
        if progress is not None:
            progress(before + start + len(indices), total)
    return answers, bytes_per_token
