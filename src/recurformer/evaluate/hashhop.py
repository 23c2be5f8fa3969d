"""Generation quality on HashHop: the model writes the chain by itself, greedily, with its own cache.

h_gq counts the leading hashes that are right. Teacher forcing, which shows the model the right hash after each
error, is not the metric.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from recurformer.study import HashHopTask as HashHopSettings
from recurformer.tasks.labels import IGNORED
from recurformer.train.data import Item, pad_batch
from recurformer.train.hashhop_data import hashhop_dataset


def hashhop_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    task: HashHopSettings,
    *,
    variants: Sequence[str] = ("official", "paper"),
    samples: int = 256,
    seed: int = 0,
    batch_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Generate and score the answers to test samples of every variant.

    Args:
        model: a causal language model, in evaluation mode.
        tokenizer: its tokenizer; not used by the form "tokens".
        task: the sizes.
        variants: layouts.
        samples: of each variant.
        seed: of the samples; they differ from the training samples of the same seed.
        batch_size: answers generated together; changes the speed, not the result.
        progress: called with (samples done, samples of all variants).

    Returns:
        One row a sample: variant, sample, correct (leading hashes), hops.
    """
    rows: list[tuple[str, int, int, int]] = []
    for variant in variants:
        dataset = hashhop_dataset(task, tokenizer, seed=seed, variant=variant, stream="test")
        prompts = [_prompt(dataset[index]) for index in range(samples)]
        # like with like, so that little or nothing is padded
        order = sorted(range(samples), key=lambda index: len(prompts[index].input_ids))
        correct = [0] * samples
        for start in range(0, samples, batch_size):
            indices = order[start : start + batch_size]
            answers = _answers(model, [prompts[index] for index in indices], dataset.pad_token_id)
            for index, answer in zip(indices, answers, strict=True):
                correct[index] = dataset.correct(index, answer)
            if progress is not None:
                progress(len(rows) + start + len(indices), samples * len(variants))
        rows += [(variant, index, count, task.hops) for index, count in enumerate(correct)]
    return pd.DataFrame(rows, columns=["variant", "sample", "correct", "hops"])


class _Prompt(NamedTuple):
    """What the model continues, and how many tokens the right answer has."""

    input_ids: torch.Tensor
    answer: int


def _prompt(item: Item) -> _Prompt:
    asked = item["labels"] != IGNORED
    first = int(asked.nonzero()[0])
    return _Prompt(item["input_ids"][:first], len(asked) - first)


@torch.no_grad()
def _answers(model: PreTrainedModel, prompts: Sequence[_Prompt], pad_token_id: int) -> list[list[int]]:
    """What the model writes after each prompt, at most as many tokens as the right answer has.

    The prompts are read once, with the logits of their last tokens only, and all answers grow together in one cache
    until the last of them has ended.
    """
    batch = pad_batch([{"input_ids": prompt.input_ids} for prompt in prompts], pad_token_id, side="left")
    batch = {key: value.to(model.device) for key, value in batch.items()}
    batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
    # nothing of the model's own configuration but its end: no sampling, no repetition penalty
    greedy = GenerationConfig(
        do_sample=False,
        max_new_tokens=max(prompt.answer for prompt in prompts),
        pad_token_id=pad_token_id,
        eos_token_id=model.generation_config.eos_token_id,
    )
    own, model.generation_config = model.generation_config, greedy
    try:
        written: torch.Tensor = model.generate(**batch)  # type: ignore[operator]
    finally:
        model.generation_config = own
    answers = written[:, batch["input_ids"].shape[1] :].tolist()
    return [answer[: prompt.answer] for answer, prompt in zip(answers, prompts, strict=True)]
